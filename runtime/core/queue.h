// Queue: where user threads hand entries to the runtime. The first stage of the road.
//
// Its lock is held for moving pointers only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/core/entry.h"

namespace horon {

// A tensor as a user hands it over.
struct Submission {
  SharedRegistration what;
  const std::byte* input = nullptr;  // lent until the work is done
  std::byte* output = nullptr;       // null: the Work will own it
  SharedEvent ready = nullptr;       // GPU: when the input may be read
};

class Queue {
 public:
  // What a push asks of its caller, so that somebody pops: nothing, because more must come first or
  // somebody was asked already; to ring if a peer waits; to ring.
  enum class Wish { kNothing, kRingIfAwaited, kRing };

  // Any thread. The i-th submission is the work's i-th member, and is moved from. All or none:
  // kInvalidArgument if one is pending (or twice in `submissions`), the closing status after Close,
  // and then none is moved from. `wish` is null if the caller will see to it that they are popped.
  // `now`: for the entries' stamps.
  Status Push(std::span<Submission> submissions, const std::shared_ptr<Work>& work,
              Wish* wish = nullptr, int64_t now = 0);

  // Holder of the baton. What came since the last time goes to `entries`, which is empty; its
  // memory takes what comes next.
  void PopAll(std::vector<Entry>& entries);
  // From now on a push rings only when it makes these `entries` of so many `bytes` in all, or
  // brings one that is in no locked schedule; while bytes alone are lacking, if a peer waits. False
  // if there are as many already. 1 and 0 at the beginning.
  bool RingFrom(size_t entries, int64_t bytes);
  bool empty() const;
  // Later pushes fail with `status`; what is queued is failed with it.
  void Close(Status status);

 private:
  Wish WishFor(std::span<const Submission> submissions) HORON_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<Entry> entries_ HORON_GUARDED_BY(mutex_);
  bool rung_ HORON_GUARDED_BY(mutex_) = false;  // somebody was asked to pop these
  int64_t bytes_ HORON_GUARDED_BY(mutex_) = 0;
  size_t ring_from_ HORON_GUARDED_BY(mutex_) = 1;
  int64_t ring_from_bytes_ HORON_GUARDED_BY(mutex_) = 0;
  Status closed_ HORON_GUARDED_BY(mutex_);
};

}  // namespace horon
