#include "runtime/core/activity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace horon {
namespace {

constexpr size_t kMostWaits = 8;
constexpr std::chrono::milliseconds kAsleep{700};

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// How often a thread's context was switched, if it sleeps in a futex now; 0: it does not, or the
// kernel does not say.
uint64_t SwitchesOfSleeper(pid_t thread) {
  const std::string folder = "/proc/self/task/" + std::to_string(thread);
  long call = -1;
  if (!(std::ifstream(folder + "/syscall") >> call) || call != SYS_futex) return 0;
  uint64_t switches = 0;
  std::ifstream status(folder + "/status");
  for (std::string word; status >> word;) {
    uint64_t count = 0;
    if (word.ends_with("voluntary_ctxt_switches:") && status >> count) switches += count;
  }
  return switches;
}

}  // namespace

bool Callers::Thread::Sleeps() {
  const auto now = std::chrono::steady_clock::now();
  const uint64_t before = std::exchange(switches, SwitchesOfSleeper(id));
  if (switches != before) since = now;
  return switches != 0 && now - since >= kAsleep;
}

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
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(shared_->mutex);
  ++shared_->now.submits;
  shared_->last.swap(key);
  shared_->last_at = now;
}

Activity Callers::Snapshot() {
  const auto now = std::chrono::steady_clock::now();
  std::string doing = inquiries_->Answer();
  MutexLock lock(shared_->mutex);
  Count(*shared_);
  Activity activity = shared_->now;
  activity.doing = std::move(doing);
  if (activity.waits.size() > kMostWaits) activity.waits.resize(kMostWaits);
  if (!shared_->last) return activity;
  activity.last = *shared_->last;
  activity.last_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - shared_->last_at).count();
  return activity;
}

// Threads that sleep elsewhere may have to be fed by the main thread, which then must sleep, too.
void Callers::Count(Shared& shared) {
  int32_t waiting = 0, asleep = 0;
  bool main_is_caller = false;
  for (Thread& thread : shared.threads) {
    const bool main = thread.id == getpid();
    main_is_caller = main_is_caller || main;
    if (thread.waits > 0) {
      ++waiting;
    } else if ((!main || thread.handed_over > 0) && thread.Sleeps()) {
      ++asleep;
    }
  }
  shared.main.id = getpid();
  if (!main_is_caller && !shared.main.Sleeps()) asleep = 0;
  shared.now.callers = static_cast<int32_t>(shared.threads.size());
  shared.now.blocked = waiting + asleep;
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
  callers_.shared_->now.waits.push_back(*key_);
}

Callers::Waiting::~Waiting() {
  MutexLock lock(callers_.shared_->mutex);
  --thread_.waits;
  auto& waits = callers_.shared_->now.waits;
  waits.erase(std::find(waits.begin(), waits.end(), *key_));
}

}  // namespace horon
