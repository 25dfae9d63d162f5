#include "runtime/core/activity.h"

#include <algorithm>

namespace horon {
namespace {

constexpr size_t kMostWaits = 8;

}  // namespace

// Of one thread in one runtime; counts it out when the thread ends.
class Callers::Membership {
 public:
  explicit Membership(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    MutexLock lock(shared_->mutex);
    ++shared_->now.callers;
  }
  Membership(Membership&&) = default;
  Membership& operator=(Membership&&) = default;
  ~Membership() {
    if (!shared_) return;
    MutexLock lock(shared_->mutex);
    --shared_->now.callers;
  }
  const Shared* of() const { return shared_.get(); }

 private:
  std::shared_ptr<Shared> shared_;
};

void Callers::Join() {
  static thread_local std::vector<Membership> memberships;
  for (const Membership& m : memberships)
    if (m.of() == shared_.get()) return;
  memberships.emplace_back(shared_);
}

void Callers::Submitted(Key key) {
  Join();
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(shared_->mutex);
  ++shared_->now.submits;
  shared_->last.swap(key);
  shared_->last_at = now;
}

Activity Callers::Snapshot() const {
  const auto now = std::chrono::steady_clock::now();
  std::string doing = inquiries_->Answer();
  MutexLock lock(shared_->mutex);
  Activity activity = shared_->now;
  activity.doing = std::move(doing);
  if (activity.waits.size() > kMostWaits) activity.waits.resize(kMostWaits);
  if (!shared_->last) return activity;
  activity.last = *shared_->last;
  activity.last_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - shared_->last_at).count();
  return activity;
}

Callers::Waiting::Waiting(Callers& callers, Key key) : callers_(callers), key_(std::move(key)) {
  callers_.Join();
  MutexLock lock(callers_.shared_->mutex);
  ++callers_.shared_->now.blocked;
  callers_.shared_->now.waits.push_back(*key_);
}

Callers::Waiting::~Waiting() {
  MutexLock lock(callers_.shared_->mutex);
  --callers_.shared_->now.blocked;
  auto& waits = callers_.shared_->now.waits;
  waits.erase(std::find(waits.begin(), waits.end(), *key_));
}

}  // namespace horon
