#include "runtime/core/activity.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace horon {
namespace {

constexpr size_t kMostWaits = 32;

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// The steady clock as of the last tick, some ms ago: costs a quarter, and a submit has no more use.
std::chrono::steady_clock::time_point LastTick() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::chrono::steady_clock::time_point(std::chrono::seconds(now.tv_sec) +
                                               std::chrono::nanoseconds(now.tv_nsec));
}

}  // namespace

// Of one thread in one runtime; counts it out when the thread ends.
class Callers::Membership {
 public:
  explicit Membership(const std::shared_ptr<Shared>& shared) : key_(shared.get()), shared_(shared) {
    MutexLock lock(shared->mutex);
    shared->threads.push_back({ThreadId()});
    thread_ = std::prev(shared->threads.end());
  }
  Membership(Membership&&) = default;
  Membership& operator=(Membership&&) = default;
  ~Membership() {
    const std::shared_ptr<Shared> shared = shared_.lock();
    if (!shared) return;
    MutexLock lock(shared->mutex);
    shared->threads.erase(thread_);
  }
  bool of(const Shared* shared) const { return key_ == shared && !over(); }
  bool over() const { return shared_.expired(); }  // its runtime is gone
  Thread& thread() const { return *thread_; }

 private:
  const Shared* key_;
  std::weak_ptr<Shared> shared_;
  std::list<Thread>::iterator thread_;
};

Callers::Thread& Callers::Join() {
  static thread_local std::vector<Membership> memberships;
  for (const Membership& m : memberships)
    if (m.of(shared_.get())) return m.thread();
  std::erase_if(memberships, [](const Membership& m) { return m.over(); });
  return memberships.emplace_back(shared_).thread();
}

void Callers::Submitted(Key key) {
  Join();
  const auto now = LastTick();
  MutexLock lock(shared_->mutex);
  ++shared_->now.submits;
  shared_->last.swap(key);
  shared_->last_at = now;
}

Activity Callers::Snapshot() {
  const auto now = std::chrono::steady_clock::now();
  std::string doing = inquiries_->Answer();
  Activity activity;
  std::vector<Thread> threads;
  {
    MutexLock lock(shared_->mutex);
    activity = shared_->now;
    threads.assign(shared_->threads.begin(), shared_->threads.end());
    if (shared_->last) {
      activity.last = *shared_->last;
      activity.last_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(now - shared_->last_at).count();
    }
  }
  activity.doing = std::move(doing);
  activity.callers = static_cast<int32_t>(threads.size());
  activity.blocked = Blocked(threads);
  if (activity.waits.size() > kMostWaits) {  // who is not told of may have hope
    activity.waits.resize(kMostWaits);
    activity.blocked = std::min(activity.blocked, activity.callers - 1);
  }
  return activity;
}

// How many wait here, or sleep elsewhere with nobody in this process who might wake them.
int32_t Callers::Blocked(const std::vector<Thread>& threads) {
  MutexLock lock(looking_);
  int32_t waiting = 0, asleep = 0;
  std::vector<pid_t> ids = {getpid()};
  bool main_is_caller = false;
  for (const Thread& thread : threads) {
    const bool main = thread.id == getpid();
    main_is_caller = main_is_caller || main;
    if (!main) ids.push_back(thread.id);
    if (thread.waits > 0 && !thread.away) {
      ++waiting;
    } else if ((!main || thread.handed_over > 0) && sleepers_.Asleep(thread.id)) {
      ++asleep;
    }
  }
  // Threads that sleep elsewhere may have to be fed by the main thread, which then must sleep, too.
  if (!main_is_caller && !sleepers_.Asleep(getpid())) asleep = 0;
  sleepers_.KeepOnly(ids);
  if (asleep > 0 && !Sleepers::OthersRest(ids)) asleep = 0;
  return waiting + asleep;
}

pid_t Callers::HandsOver() {
  Thread& thread = Join();
  MutexLock lock(shared_->mutex);
  ++thread.handed_over;
  return thread.id;
}

void Callers::TakesBack(pid_t id) {
  MutexLock lock(shared_->mutex);
  for (Thread& thread : shared_->threads) {
    if (thread.id == id && thread.handed_over > 0) --thread.handed_over;
  }
}

Callers::Waiting::Waiting(Callers& callers, Key key)
    : callers_(callers), key_(std::move(key)), thread_(callers.Join()) {
  MutexLock lock(callers_.shared_->mutex);
  ++thread_.waits;
  before_ = std::exchange(thread_.away, false);
  callers_.shared_->now.waits.push_back(*key_);
}

Callers::Waiting::~Waiting() {
  MutexLock lock(callers_.shared_->mutex);
  --thread_.waits;
  thread_.away = before_;
  auto& waits = callers_.shared_->now.waits;
  waits.erase(std::find(waits.begin(), waits.end(), *key_));
}

void Callers::Waiting::TurnsAway() {
  MutexLock lock(callers_.shared_->mutex);
  thread_.away = true;
}

void Callers::Waiting::TurnsBack() {
  MutexLock lock(callers_.shared_->mutex);
  thread_.away = false;
}

}  // namespace horon
