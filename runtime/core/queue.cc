#include "runtime/core/queue.h"

namespace horon {

class Queue::Lease final : public NameLease {
 public:
  Lease(std::shared_ptr<Names> names, std::string key)
      : names_(std::move(names)), key_(std::move(key)) {}
  ~Lease() override {
    MutexLock lock(names_->mutex);
    names_->pending.erase(key_);
  }

 private:
  std::shared_ptr<Names> names_;
  std::string key_;
};

Status Queue::Push(std::vector<Submission> submissions, bool* wake) {
  {
    MutexLock lock(mutex_);
    HORON_TRY(closed_);
  }
  std::vector<std::unique_ptr<Lease>> leases;
  for (Submission& s : submissions) {
    std::string key = s.entry.key();
    {
      MutexLock lock(names_->mutex);
      if (!names_->pending.insert(key).second) {
        return Status::InvalidArgument(
            "a tensor named '" + s.entry.request.name +
            "' is still pending on this rank: wait for it, or give this one another name");
      }
    }
    leases.push_back(std::make_unique<Lease>(names_, std::move(key)));
  }
  MutexLock lock(mutex_);
  HORON_TRY(closed_);
  if (wake != nullptr && *wake) *wake = !std::exchange(rung_, true);
  for (size_t i = 0; i < submissions.size(); ++i) {
    Submission& s = submissions[i];
    s.entry.promise = Promise(std::move(s.work), s.member, std::move(leases[i]));
    entries_.push_back(std::move(s.entry));
  }
  return Status::Ok();
}

std::vector<Entry> Queue::PopAll() {
  MutexLock lock(mutex_);
  rung_ = false;
  return std::exchange(entries_, {});
}

bool Queue::empty() const {
  MutexLock lock(mutex_);
  return entries_.empty();
}

void Queue::Close(Status status) {
  std::vector<Entry> dropped;
  {
    MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = status;
    dropped = std::exchange(entries_, {});
  }
  for (Entry& entry : dropped) entry.promise.Finish(status);
}

}  // namespace horon
