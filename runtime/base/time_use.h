// TimeUse: where this rank's time goes, for horonrun --explain: what the runtime did, and whether
// the program waited for it.
//
// At each moment the runtime is at one stage, and the program waits or does not; what has passed
// since the last change goes to the counter of that pair (explain.ns.*). It begins when a tensor
// comes for the second time, so that starting up does not count; what the program does after its
// last wait does not count either. There is none unless asked for.
//
// See, Begin, Finished: holder of the baton. Waiting: any thread that waits for a work.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/counters.h"

namespace horon {

class TimeUse {
 public:
  enum class Stage {
    kNothing,      // is under way; who waits now waits for the runtime to wake up
    kNegotiation,  // is not over for what was submitted
    kOthers,       // have not begun with the bucket whose turn it is
    kMoving,       // bytes travel
  };
  explicit TimeUse(Counters& counters);

  void See(Stage stage);
  // A tensor comes again.
  void Begin();
  // Of a tensor in a bucket that is finished; `runs` so far, this one included.
  void Finished(uint64_t runs, int64_t bytes, bool locked);
  // A bucket is finished: what this rank spent in it on copying and adding, in ns.
  void FinishedBucket(int64_t copying, int64_t reducing);

  // A thread of the program waits while it lives; nothing without a TimeUse.
  class Waiting {
   public:
    explicit Waiting(TimeUse* use) : use_(use) {
      if (use_ != nullptr) use_->ChangeWaiting(1);
    }
    ~Waiting() {
      if (use_ != nullptr) use_->ChangeWaiting(-1);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    TimeUse* use_;
  };

 private:
  void ChangeWaiting(int by);
  void Charge() HORON_REQUIRES(mutex_);

  std::array<std::array<Counter*, 4>, 2> parts_;  // by whether it waits, by stage
  Counter &copying_, &reducing_, &waits_;
  Counter &buckets_, &tensors_, &bytes_, &locked_, &distinct_, &distinct_bytes_;
  Stage seen_ = Stage::kNothing;  // holder of the baton: the same as stage_, without the lock
  bool begun_ = false;            // the same as measuring_
  Mutex mutex_;
  Stage stage_ HORON_GUARDED_BY(mutex_) = Stage::kNothing;
  int waiting_ HORON_GUARDED_BY(mutex_) = 0;
  bool measuring_ HORON_GUARDED_BY(mutex_) = false;
  int64_t since_ HORON_GUARDED_BY(mutex_) = 0;  // ns of the steady clock
};

}  // namespace horon
