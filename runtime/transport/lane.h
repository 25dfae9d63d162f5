// Lane: elementwise reductions that stream through the node's segment in cache-sized chunks.
//
// The tensors of a bucket are one virtual row of elements, cut into chunks. For each chunk every
// rank packs what others own of it into its slot (scaling on the way), then reduces the part that it
// owns from its input and the others' slots, by ascending rank, into its output and over the input
// of its right neighbour, then copies the other parts from there. Three chunks are in flight in
// different phases, so packing one overlaps waiting for another, and the segment never grows with
// the tensors. A bucket of at most kInlineBytes takes one step less: every rank packs all of it, and
// reduces everything for itself.
//
// Bytes moved per rank for S bytes on P ranks: 2(P-1)/P S packing, S + 2S/P reducing, 2(P-1)/P S
// taking; for two ranks 4S, of which 1S crosses between their caches in each direction.
// Flags: three monotonic chunk counters per rank (LaneWords), one writer each; a slot is written
// again only when every member has taken what was in it. Each rank also writes which bucket its
// chunk belongs to; nobody writes to a user's tensor before all say the same.
//
// One lane serves one group of ranks (a process set inside a node, or the node's part of one), its
// buckets one after the other in the order agreed. A lane never changes its group: the counters of
// its members start at 0 together. Holder of the baton only.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/phases.h"
#include "runtime/device/kernels.h"
#include "runtime/transport/segment.h"
#include "runtime/transport/transport.h"

namespace horon {

// One tensor of a bucket. Output may equal input.
struct LaneTensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;
};

struct LaneReduction {
  DataType dtype = DataType::kFloat32;
  ReduceKind kind = ReduceKind::kSum;
  double prescale = 1.0;
  double scale = 1.0;   // of the result
  uint64_t bucket = 0;  // tells this bucket from others; the same on all members
};

class Lane {
 public:
  static constexpr int64_t kInlineBytes = 8 << 10;

  // `members`: local ranks of the group, ascending; `me` is my index among them.
  Lane(std::shared_ptr<SharedSegment> segment, int lane, std::vector<int> members, int me);

  // Takes this bucket's place in the lane's queue. Call in the agreed order of buckets.
  uint64_t TakeTicket() { return next_ticket_++; }
  // The last ticket taken: its bucket does not run now. Destroy its Allreduce before.
  void GiveBack(uint64_t ticket) { next_ticket_ = ticket; }
  // Some members may have packed chunks of a bucket that they gave back. All members call this at
  // the same place in the order of buckets: later buckets begin beyond all such chunks.
  void Skip() { skips_.push_back(next_ticket_); }
  // Reduces over the members. The tensors' list is copied, their memory lent until done. `phases`:
  // when what was done, unless null; lives until then.
  Task Allreduce(uint64_t ticket, std::vector<LaneTensor> tensors, LaneReduction reduction,
                 Phases* phases = nullptr);

 private:
  class Stream;
  class Turn;
  void SkipChunks(uint64_t ticket);
  void Ring();

  std::shared_ptr<SharedSegment> segment_;
  int lane_;
  std::vector<int> members_;
  int me_;
  uint64_t next_ticket_ = 0;
  uint64_t serving_ = 0;
  uint64_t done_chunks_ = 0;    // of all buckets so far: where the next bucket's chunks begin
  std::deque<uint64_t> skips_;  // tickets before which chunks are skipped, ascending
};

}  // namespace horon
