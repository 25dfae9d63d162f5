// Lane: reductions through memory that the ranks of a node share: elementwise ones (lane_stream.h
// says how), and those of ops that swap rows in several passes (lane_swap.h).
//
// One lane serves one group of ranks (a process set inside a node, or the node's part of one), its
// buckets one after the other in the order agreed. A lane never changes its group: the counters of
// its members start at 0 together. Holder of the baton only.
#pragma once

#include <deque>

#include "runtime/base/phases.h"
#include "runtime/base/task.h"
#include "runtime/transport/lane_bucket.h"
#include "runtime/transport/lane_swap.h"

namespace horon {

class Lane {
 public:
  explicit Lane(LaneGroup group)
      : group_(std::move(group)), distance_(group_.size(), group_.far_ns) {}

  // Takes this bucket's place in the lane's queue. Call in the agreed order of buckets.
  uint64_t TakeTicket() { return next_ticket_++; }
  // The last ticket taken: its bucket does not run now. Destroy its Allreduce before.
  void GiveBack(uint64_t ticket) { next_ticket_ = ticket; }
  // Some members may have packed chunks of a bucket that they gave back. All members call this at
  // the same place in the order of buckets: later buckets begin beyond all such chunks.
  void Skip() { skips_.push_back(next_ticket_); }
  // Reduces over the members. The tensors' list is copied, their memory lent until done. `phases`:
  // when what was done, unless null; lives until then.
  Task Allreduce(uint64_t ticket, RecycledVector<LaneTensor> tensors, LaneReduction reduction,
                 Phases* phases = nullptr);

  // The turn of a bucket that does several things in it, until Served.
  Task Await(uint64_t ticket, Phases* phases = nullptr);
  void Served() { ++serving_; }
  bool CanSwap(int64_t element) const { return LaneSwap::Fits(group_.segment->shape(), element); }
  // In one's turn: a row to swap, which is lent until the last pass is over; and a pass over it.
  LaneSwap MakeSwap(int64_t element, const LaneRow& row, LaneSwap::Passes passes) {
    return LaneSwap(group_, distance_, done_chunks_, element, row, passes);
  }
  Task Swap(LaneSwap& swap, LaneSwap::Pass pass, LaneSwap::Meet meet);

 private:
  class Turn;
  class Pause;
  uint64_t MostPacked() const;
  void SkipChunks(uint64_t ticket);
  void BeginTurn(uint64_t ticket, Phases* phases);

  LaneGroup group_;
  LaneDistance distance_;
  uint64_t next_ticket_ = 0;
  uint64_t serving_ = 0;
  uint64_t done_chunks_ = 0;    // of all buckets so far: where the next bucket's chunks begin
  std::deque<uint64_t> skips_;  // tickets before which chunks are skipped, ascending
  Phases* phases_ = nullptr;    // of the bucket whose turn it is
};

}  // namespace horon
