#include "runtime/core/queue.h"

#include <utility>

namespace horon {
namespace {

void ReleaseAll(std::span<const Submission> submissions) {
  for (const Submission& s : submissions) s.what->Release();
}

}  // namespace

Status Queue::Push(std::span<const Submission> submissions, const std::shared_ptr<Work>& work,
                   bool* wake) {
  for (size_t i = 0; i < submissions.size(); ++i) {
    if (submissions[i].what->Claim()) continue;
    ReleaseAll(submissions.first(i));
    return StillPending(submissions[i].what->request);
  }
  MutexLock lock(mutex_);
  if (!closed_.ok()) {
    ReleaseAll(submissions);
    return closed_;
  }
  if (wake != nullptr && *wake) *wake = !std::exchange(rung_, true);
  for (size_t i = 0; i < submissions.size(); ++i) {
    const Submission& s = submissions[i];
    entries_.push_back(
        {s.what, s.input, s.output, Promise(work, static_cast<int>(i), s.what), {}, nullptr});
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
