// LaneStream: one bucket on its way through a lane, in one of two ways.
//
// Streamed: the tensors are one virtual row of elements, cut into chunks. For each chunk every rank
// packs what others own of it into its slot (scaling on the way), then reduces the part that it
// owns from its input and the others' slots, by ascending rank, into its output and over the input
// of its right neighbour, then copies the other parts from there. Three chunks are in flight in
// different phases, so packing one overlaps waiting for another, and the segment never grows with
// the tensors. A bucket of at most kInlineBytes takes one step less: every rank packs all of it,
// and reduces everything for itself. Bytes moved per rank for S bytes on P ranks: 2(P-1)/P S
// packing, S + 2S/P reducing, 2(P-1)/P S taking; for two ranks 4S, of which 1S crosses between
// their caches in each direction.
//
// In place, when every tensor of the bucket lies in memory that all members have mapped, at the
// same place on each: the row is one chunk, nothing is packed, and each rank reduces its part from
// the members' tensors into all of them: 2S for any number of ranks. Each says in its first chunk
// where its tensors lie; where they differ, all give that chunk up and stream.
//
// Flags: three monotonic chunk counters per rank (LaneWords), one writer each; a slot is written
// again only when every member has taken what was in it. Each rank also writes which bucket its
// chunk belongs to; nobody writes to a user's tensor before all say the same. Holder of the baton
// only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "runtime/base/phases.h"
#include "runtime/base/task.h"
#include "runtime/transport/lane_bucket.h"
#include "runtime/transport/lane_distance.h"
#include "runtime/transport/lane_in_place.h"

namespace horon {

class LaneStream final : public Waitable {
 public:
  static constexpr int64_t kInlineBytes = 8 << 10;

  // `first`: the chunks of all buckets before. No tensor is empty; their memory and all else that
  // is given are lent until done.
  LaneStream(const LaneGroup& group, LaneDistance& distance, uint64_t first,
             std::span<const LaneTensor> tensors, const LaneReduction& reduction, Phases* phases);

  bool done() const { return taken_ == chunks_; }
  uint64_t end() const { return first_ + chunks_; }  // the chunks of all buckets up to this one
  const Status& status() const { return status_; }
  // The last step left a piece of my part for later, so that others come to their turn.
  bool paused() const { return reduced_whole_ > 0 && reduced_ == 0; }
  // One of the three cursors can move.
  bool Ready() override { return CanPack() || CanReduce() || CanTake(); }
  // Moves what can move; the latest phase first, because it frees slots. False: nothing can.
  bool Step();

 private:
  using Word = std::atomic<uint64_t> LaneWords::*;
  static constexpr int64_t kStepBytes = 512 << 10;  // that one step reduces in place

  void Cut();
  bool AllReached(Word word, uint64_t chunk) const {
    return group_.AllReached(word, first_ + chunk);
  }
  bool CanPack() const;
  bool CanReduce() const;
  bool CanTake() const;
  void Check();
  void Restart();
  bool PastCaches() const;
  void LookForDistance();
  void Pack();
  void Reduce();
  void Take();
  bool ReduceInPlace();
  void ReduceChunk();
  void ReduceCopies(const LaneTensor& t, int64_t offset, int64_t n);
  void ReducePiece(const LaneTensor& t, int64_t offset, int64_t at, int64_t n);
  void TakeOthersParts();
  void TakeInline();

  std::byte* Slot(int member, uint64_t chunk) const { return group_.slot(member, first_ + chunk); }
  // Where a member's part is once it is reduced: in the next member's slot, where it read an input.
  std::byte* Result(int member, uint64_t chunk) const {
    return Slot((member + 1) % group_.size(), chunk);
  }
  int64_t Begin(uint64_t chunk) const { return static_cast<int64_t>(chunk) * chunk_; }
  int64_t Size(uint64_t chunk) const { return std::min(chunk_, count_ - Begin(chunk)); }
  std::pair<int64_t, int64_t> PartOf(uint64_t chunk, int member) const;

  // Where a cursor is in the row.
  struct At {
    size_t tensor = 0;
    int64_t begin = 0;  // of that tensor, in the row
  };
  template <typename F>
  void ForRange(int64_t begin, int64_t count, At& at, F&& f) const;
  template <typename F>
  void ForOthersParts(uint64_t chunk, At& at, F&& f) const;

  const LaneGroup& group_;
  LaneDistance& distance_;
  std::span<const LaneTensor> tensors_;
  const LaneReduction& reduction_;
  Phases* phases_;
  int64_t element_;
  uint64_t first_;
  int64_t count_ = 0, chunk_ = 0;
  uint64_t chunks_ = 0, packed_ = 0, reduced_ = 0, taken_ = 0;
  bool inline_ = false, checked_ = false;
  InPlace in_place_;
  bool whole_ = false;         // in place, or asking whether all can
  int64_t reduced_whole_ = 0;  // elements of my part
  Status status_;
  At pack_at_, reduce_at_, take_at_;
  RecycledVector<const std::byte*> inputs_;
  RecycledVector<std::byte*> copies_;  // of a result, on the other members
};

}  // namespace horon
