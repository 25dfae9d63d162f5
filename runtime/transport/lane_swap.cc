#include "runtime/transport/lane_swap.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/fault.h"

namespace horon {
namespace {

int64_t ChunkElements(const SegmentShape& shape, int64_t element, int64_t most) {
  return std::min(shape.chunk_bytes, most) / element / kDotBlock * kDotBlock;
}

}  // namespace

bool LaneSwap::Fits(const SegmentShape& shape, int64_t element) {
  return ChunkElements(shape, element, kChunkBytes) > 0;
}

LaneSwap::LaneSwap(const LaneGroup& group, LaneDistance& distance, uint64_t first, int64_t element,
                   const LaneRow& row, Passes passes)
    : group_(group),
      distance_(distance),
      row_(row),
      element_(element),
      chunk_(ChunkElements(group.segment->shape(), element, kChunkBytes)),
      first_(first) {
  int64_t at = 0;
  for (const LanePart& part : row.parts) {
    begin_.push_back(at);
    at += (part.most + kDotBlock - 1) / kDotBlock * kDotBlock;
  }
  begin_.push_back(at);
  chunks_ = taken_ = static_cast<uint64_t>((at + chunk_ - 1) / chunk_);
  where_ = Choose(passes);
}

LaneSwap::Where LaneSwap::Choose(Passes passes) const {
  if (chunks_ <= group_.slots()) return Where::kInSlots;
  const bool fits = begin_.back() * element_ <= group_.segment->shape().row_bytes;
  return passes == Passes::kSeveral && fits ? Where::kInRow : Where::kThroughSlots;
}

std::byte* LaneSwap::Slot(int member, uint64_t chunk) const {
  if (where_ == Where::kInRow)
    return group_.row(member) + static_cast<int64_t>(Place(chunk)) * chunk_ * element_;
  return group_.slot(member, first_ + (stays() ? Place(chunk) : chunk));
}

void LaneSwap::Begin(Pass pass, Meet meet, Phases* phases) {
  pass_ = pass;
  meet_ = std::move(meet);
  phases_ = phases;
  met_ = taken_ = 0;
  if (!std::exchange(begun_, true)) return;
  backwards_ = !backwards_;
  if (stays()) return;
  first_ += chunks_;
  packed_ = 0;
}

bool LaneSwap::Step() {
  if (CanTake()) {
    if (phases_ != nullptr) phases_->Arrived();
    const PhaseTimer timer(phases_, &Phases::unpacking);
    Take();
  } else if (CanMeet()) {
    const PhaseTimer timer(phases_, &Phases::reducing);
    MeetChunk();
  } else if (CanPack()) {
    const PhaseTimer timer(phases_, &Phases::packing);
    Pack();
    if (phases_ != nullptr) phases_->Sent();
  } else {
    return false;
  }
  return true;
}

// A row of before may lie where one goes that takes more than slots.
bool LaneSwap::CanPack() const {
  if (packed_ == chunks_) return false;
  return where_ == Where::kInRow ? group_.AllReached(&LaneWords::taken, first_)
                                 : group_.SlotFree(first_ + packed_);
}

bool LaneSwap::CanMeet() const {
  return met_ < packed_ && group_.AllReached(&LaneWords::packed, first_ + met_ + 1);
}

bool LaneSwap::CanTake() const {
  return pass_ == Pass::kLastBack && taken_ < met_ &&
         group_.AllReached(&LaneWords::reduced, first_ + taken_ + 1);
}

// f(part, which, the at-th element of it to begin with, count, place in the slot) for the elements
// of a chunk.
template <typename F>
void LaneSwap::ForParts(uint64_t chunk, int64_t LanePart::* elements, F&& f) const {
  const int64_t from = static_cast<int64_t>(Place(chunk)) * chunk_;
  const int64_t to = std::min(from + chunk_, begin_.back());
  auto i =
      static_cast<size_t>(std::upper_bound(begin_.begin(), begin_.end(), from) - begin_.begin()) -
      1;
  for (; i < row_.parts.size() && begin_[i] < to; ++i) {
    const LanePart& part = row_.parts[i];
    const int64_t at = std::max(from - begin_[i], int64_t{0});
    const int64_t count = std::min(to - begin_[i], part.*elements) - at;
    if (count > 0) f(part, i, at, count, (begin_[i] + at - from) * element_);
  }
}

void LaneSwap::Pack() {
  FaultPoint(FaultPhase::kCopyIn);
  LaneWords& mine = group_.mine();
  if (packed_ == 0) group_.Announce(first_, row_.bucket, 0);
  std::byte* const slot = Slot(group_.me, packed_);
  const auto copy = distance_.far() ? CopyPastCaches : CopyInto;
  ForParts(packed_, &LanePart::gives,
           [&](const LanePart& part, size_t, int64_t at, int64_t count, int64_t place) {
             copy(part.given + at * element_, slot + place, count * element_);
           });
  if (distance_.far() && group_.past_caches != nullptr) group_.past_caches->Add();
  ++packed_;
  mine.beat.store(first_ + packed_, std::memory_order_relaxed);
  mine.packed.store(first_ + packed_, std::memory_order_release);
  group_.RingOthers();
}

// Whose line I look at: the partner's, or of a row of my own a neighbor's.
int LaneSwap::Other() const {
  return row_.partner != group_.me ? row_.partner : (group_.me + 1) % group_.size();
}

void LaneSwap::MeetChunk() {
  FaultPoint(FaultPhase::kReduce);
  distance_.Look(Other(), group_.words(Other()).beat);
  if (met_ == 0) {
    if (phases_ != nullptr) phases_->Met();
    status_ = group_.SameBucket(first_, row_.bucket);
    if (!status_.ok()) return;
  }
  std::byte* const slot = Slot(row_.partner, met_);
  ForParts(met_, &LanePart::keeps,
           [&](const LanePart&, size_t i, int64_t at, int64_t count, int64_t place) {
             meet_(i, at, slot + place, count);
           });
  ++met_;
  if (pass_ != Pass::kLastBack) taken_ = met_;
  if (pass_ == Pass::kMore && stays()) return;  // what is packed is needed again
  LaneWords& mine = group_.mine();
  mine.reduced.store(first_ + met_, std::memory_order_release);
  if (pass_ != Pass::kLastBack) SayTaken();
  group_.RingOthers();
}

void LaneSwap::Take() {
  FaultPoint(FaultPhase::kCopyOut);
  const std::byte* const slot = Slot(group_.me, taken_);
  ForParts(taken_, &LanePart::gives,
           [&](const LanePart& part, size_t, int64_t at, int64_t count, int64_t place) {
             if (part.back == nullptr) return;
             std::memcpy(part.back + at * element_, slot + place,
                         static_cast<size_t>(count * element_));
           });
  ++taken_;
  SayTaken();
  group_.RingOthers();
}

// The number says that all slots of chunks before it are free. Backwards the first one is the last.
void LaneSwap::SayTaken() {
  if (where_ == Where::kInSlots && backwards_ && !done()) return;
  group_.mine().taken.store(first_ + taken_, std::memory_order_release);
}

}  // namespace horon
