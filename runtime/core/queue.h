// Queue: where user threads hand entries to the runtime. The first stage of the road.
//
// Its lock is held for moving pointers and looking up names only. It also knows which names are
// pending, so that a second submit of one fails at once, in the caller.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/core/entry.h"

namespace horon {

class Queue {
 public:
  Queue() : names_(std::make_shared<Names>()) {}

  // Any thread. All or none: kInvalidArgument if a name is pending (or twice in `entries`), the
  // closing status after Close. On success each entry's promise got its name's lease. *wake:
  // whether the caller wants somebody woken to pop, and then whether it must ring for that itself
  // (only the first since the last PopAll need).
  struct Submission {
    Entry entry;
    std::shared_ptr<Work> work;
    int member = 0;
  };
  Status Push(std::vector<Submission> submissions, bool* wake = nullptr);

  // Holder of the baton.
  std::vector<Entry> PopAll();
  bool empty() const;
  // Later pushes fail with `status`; what is queued is failed with it.
  void Close(Status status);

 private:
  struct Names {
    Mutex mutex;
    std::unordered_set<std::string> pending HORON_GUARDED_BY(mutex);
  };
  class Lease;

  std::shared_ptr<Names> names_;  // shared with the leases, which may outlive the queue
  mutable Mutex mutex_;           // guards those below; names_->mutex is never taken inside it
  std::vector<Entry> entries_ HORON_GUARDED_BY(mutex_);
  bool rung_ HORON_GUARDED_BY(mutex_) = false;  // somebody was asked to pop these
  Status closed_ HORON_GUARDED_BY(mutex_);
};

}  // namespace horon
