// LaneSwap: a row that the members of a lane show each other, for ops that must see all of two
// vectors before they can combine them (Adasum), that mix what only some have (gossip), or that
// want what one has (broadcast: that one is the partner of all), or each another part (alltoall).
//
// Of each tensor a member keeps one part and gives its partner its values of another. These parts,
// each from a whole block of kDotBlock elements on, are a row, cut into chunks: every member packs
// what it gives into its slot, and its partner meets that where it lies, so that nothing is
// received into memory of its own. All others may look at it, too, so partners need not be each
// other's. The row is gone through once or several times, to and fro, because caches still have
// where the last pass ended; and packed each time, unless the slots hold all of it, or the lane's
// memory for rows, which one of several passes takes. What the partner has written over a chunk in
// the last pass comes back as LaneStream's results do. Bytes moved per rank for rows of R bytes: R
// packing, 2R looking; R packing again where it must, 3R combining in place, 2R to the partner and
// from it.
//
// All members go through the same passes over rows of the same tensors, whoever is whose partner.
// Flags as in LaneStream. Holder of the baton only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/base/phases.h"
#include "runtime/base/recycler.h"
#include "runtime/base/task.h"
#include "runtime/transport/lane_bucket.h"
#include "runtime/transport/lane_distance.h"

namespace horon {

// Of one tensor.
struct LanePart {
  const std::byte* given = nullptr;  // my values of what the partner keeps
  std::byte* back = nullptr;         // where they come back to; null: they are of no use
  int64_t gives = 0, keeps = 0;      // elements; what one partner gives the other one keeps
  int64_t most = 0;                  // that any member gives: the same on all
};

struct LaneRow {
  int partner = 0;      // its index among the members
  uint64_t bucket = 0;  // tells this row from others; the same on all members
  RecycledVector<LanePart> parts;
};

class LaneSwap final : public Waitable {
 public:
  // The partner's values of `count` elements that I keep of part i, the at-th to begin with. Blocks
  // of kDotBlock elements come whole, in the first pass by ascending `at`.
  using Meet = std::function<void(size_t i, int64_t at, std::byte* theirs, int64_t count)>;
  enum class Pass {
    kMore,      // another one follows
    kLast,      // what the partner finds in its slot is of no use to it
    kLastBack,  // what Meet wrote over `theirs` comes back to the partner
  };

  // Whether a slot holds a block of elements of this size.
  static bool Fits(const SegmentShape& shape, int64_t element);

  enum class Passes { kOne, kSeveral };

  // `first`: the chunks of all before. All that is given is lent until done.
  LaneSwap(const LaneGroup& group, LaneDistance& distance, uint64_t first, int64_t element,
           const LaneRow& row, Passes passes);

  // Within Meet: another member's values of the same place, which it may read.
  const std::byte* Of(int member, const std::byte* theirs) const {
    return Slot(member, met_) + (theirs - Slot(row_.partner, met_));
  }
  // Of a row that is done(), if it has begun. Give the same kind on all members.
  void Begin(Pass pass, Meet meet, Phases* phases);
  bool done() const { return taken_ == chunks_; }
  uint64_t end() const { return first_ + chunks_; }  // after the last pass
  const Status& status() const { return status_; }
  bool Ready() override { return CanPack() || CanMeet() || CanTake(); }
  // Moves what can move; the latest phase first. False: nothing can.
  bool Step();

 private:
  static constexpr int64_t kChunkBytes = 256 << 10;
  enum class Where { kThroughSlots, kInSlots, kInRow };

  bool CanPack() const;
  bool CanMeet() const;
  bool CanTake() const;
  void Pack();
  void MeetChunk();
  void Take();
  void SayTaken();
  int Other() const;
  Where Choose(Passes passes) const;
  // Whether it is packed once for all passes.
  bool stays() const { return where_ != Where::kThroughSlots; }
  // Where a chunk is in the row, in chunks.
  uint64_t Place(uint64_t chunk) const { return backwards_ ? chunks_ - 1 - chunk : chunk; }
  template <typename F>
  void ForParts(uint64_t chunk, int64_t LanePart::* elements, F&& f) const;
  std::byte* Slot(int member, uint64_t chunk) const;

  const LaneGroup& group_;
  LaneDistance& distance_;
  const LaneRow& row_;
  int64_t element_, chunk_;
  RecycledVector<int64_t> begin_;  // of each part in the row, and the row's end
  uint64_t first_, chunks_;
  Where where_;
  bool begun_ = false, backwards_ = false;
  Pass pass_ = Pass::kLast;
  uint64_t packed_ = 0, met_ = 0, taken_ = 0;
  Meet meet_;
  Phases* phases_ = nullptr;
  Status status_;
};

}  // namespace horon
