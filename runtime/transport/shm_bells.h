// ShmBells: how one rank wakes the others of its node for messages that it wrote for them.
//
// A sleeping lender is a user who waits: rung for at once. A background thread is rung for late, if
// at all (base/doorbell.h says why). Used by ShmTransport and its peers, on the holder of the
// baton.
#pragma once

#include <vector>

#include "runtime/transport/segment.h"

namespace horon {

class ShmBells {
 public:
  ShmBells(SharedSegment& segment, int local_rank)
      : segment_(&segment),
        local_rank_(local_rank),
        owed_(static_cast<size_t>(segment.shape().ranks)) {}

  // Something was written for this local rank.
  void Ring(int local);
  // This local rank may wait for room in its ring, which nobody else tells it: rung for at once.
  void RingNow(int local) { segment_->rank(local).bell.Ring(); }
  // One more round of Progress; after too many of them with rings owed, rings.
  void CountRound();
  // Rings for what was put off and has not been read meanwhile.
  void Flush();

 private:
  SharedSegment* segment_;
  int local_rank_;
  std::vector<bool> owed_;  // by local rank: a background thread that was not woken yet
  int owed_for_ = 0;        // rounds of Progress since the first of them; 0: none
};

}  // namespace horon
