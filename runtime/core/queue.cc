#include "runtime/core/queue.h"

#include <algorithm>
#include <utility>

namespace horon {
namespace {

void ReleaseAll(std::span<const Submission> submissions) {
  for (const Submission& s : submissions) s.what->Unclaim();
}

bool AnyUnscheduled(std::span<const Submission> submissions) {
  return std::any_of(submissions.begin(), submissions.end(), [](const Submission& s) {
    return s.what->batch.load(std::memory_order_relaxed) < 0;
  });
}

}  // namespace

Queue::Wish Queue::WishFor(std::span<const Submission> submissions) {
  const bool complete = entries_.size() + submissions.size() >= ring_from_;
  if ((complete && bytes_ >= ring_from_bytes_) || AnyUnscheduled(submissions))
    return std::exchange(rung_, true) ? Wish::kNothing : Wish::kRing;
  return complete && !rung_ ? Wish::kRingIfAwaited : Wish::kNothing;
}

Status Queue::Push(std::span<Submission> submissions, const std::shared_ptr<Work>& work,
                   Wish* wish, int64_t now) {
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
  for (const Submission& s : submissions) bytes_ += s.what->bytes;
  if (wish != nullptr) *wish = WishFor(submissions);
  for (size_t i = 0; i < submissions.size(); ++i) {
    Submission& s = submissions[i];
    Entry& entry = entries_.emplace_back();
    entry.input = s.input;
    entry.output = s.output;
    entry.promise = Promise(work, static_cast<int>(i), s.what);
    entry.what = std::move(s.what);
    entry.ready = std::move(s.ready);
    entry.stamps.submitted = now;
  }
  return Status::Ok();
}

void Queue::PopAll(std::vector<Entry>& entries) {
  MutexLock lock(mutex_);
  rung_ = false;
  bytes_ = 0;
  entries_.swap(entries);
}

bool Queue::RingFrom(size_t entries, int64_t bytes) {
  MutexLock lock(mutex_);
  ring_from_ = entries;
  ring_from_bytes_ = bytes;
  return entries_.size() < entries || bytes_ < bytes;
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
