#include "runtime/transport/lane_stream.h"

#include <cstring>

#include "runtime/base/fault.h"
#include "runtime/transport/collectives.h"

namespace horon {

LaneStream::LaneStream(const LaneGroup& group, LaneDistance& distance, uint64_t first,
                       std::span<const LaneTensor> tensors, const LaneReduction& reduction,
                       Phases* phases)
    : group_(group),
      distance_(distance),
      tensors_(tensors),
      reduction_(reduction),
      phases_(phases),
      element_(SizeOf(reduction.dtype)),
      first_(first) {
  for (const LaneTensor& t : tensors) count_ += t.count;
  inline_ = count_ * element_ <= kInlineBytes;
  if (!inline_ && reduction.prescale == 1.0) in_place_ = InPlace(tensors, element_, *group.regions);
  whole_ = in_place_.layout() != 0;
  Cut();
}

void LaneStream::Cut() {
  const int64_t slot = group_.segment->shape().chunk_bytes;
  const int64_t wanted = reduction_.chunk_bytes > 0 ? reduction_.chunk_bytes : slot;
  chunk_ = whole_ ? count_ : std::max<int64_t>(1, std::min(wanted, slot) / element_);
  chunks_ = count_ == 0 ? 0 : static_cast<uint64_t>((count_ + chunk_ - 1) / chunk_);
}

bool LaneStream::Step() {
  // Asked once: others go on meanwhile, and nothing may be done that was not checked.
  const bool can_take = CanTake(), can_reduce = !can_take && CanReduce();
  if (!checked_ && (can_take || can_reduce)) {
    Check();
  } else if (can_take) {
    if (phases_ != nullptr) phases_->Arrived();
    const PhaseTimer timer(phases_, &Phases::unpacking);
    Take();
  } else if (can_reduce) {
    const PhaseTimer timer(phases_, &Phases::reducing);
    Reduce();
  } else if (CanPack()) {
    const PhaseTimer timer(phases_, &Phases::packing);
    Pack();
    if (phases_ != nullptr) phases_->Sent();
  } else {
    return false;
  }
  return true;
}

// --- who is how far

bool LaneStream::CanPack() const { return packed_ < chunks_ && group_.SlotFree(first_ + packed_); }

bool LaneStream::CanReduce() const {
  return !inline_ && reduced_ < packed_ && AllReached(&LaneWords::packed, reduced_ + 1);
}

bool LaneStream::CanTake() const {
  if (inline_) return taken_ < packed_ && AllReached(&LaneWords::packed, taken_ + 1);
  return taken_ < reduced_ && AllReached(&LaneWords::reduced, taken_ + 1);
}

// All have packed the first chunk: is it of the same bucket, and do the tensors lie alike?
void LaneStream::Check() {
  checked_ = true;
  if (phases_ != nullptr) phases_->Met();
  status_ = group_.SameBucket(first_, reduction_.bucket);
  if (!group_.SameLayout(first_, in_place_.layout())) Restart();
}

// Whoever cannot reduce in place may have packed as many chunks as there are slots, and whoever can
// has packed nothing at all. What the first chunk said stays until all have seen it: its place is
// written again only by a bucket for which all have taken these chunks.
void LaneStream::Restart() {
  whole_ = false;
  Cut();
  first_ += group_.slots();
  packed_ = 0;
  pack_at_ = {};
  group_.MoveTo(first_);
}

// --- the row

// Parts begin at whole cache lines of the row, so that no two ranks write into one of a slot.
std::pair<int64_t, int64_t> LaneStream::PartOf(uint64_t chunk, int member) const {
  const int64_t line = std::max<int64_t>(1, static_cast<int64_t>(kCacheLine) / element_);
  const int64_t lines = (Size(chunk) + line - 1) / line;
  const int64_t begin = std::min(Size(chunk), PartBegin(lines, group_.size(), member) * line);
  const int64_t end = std::min(Size(chunk), PartBegin(lines, group_.size(), member + 1) * line);
  return {begin, end};
}

// f(tensor, offset in it, offset in the range, count) for the elements [begin, begin + count) of
// the row.
template <typename F>
void LaneStream::ForRange(int64_t begin, int64_t count, At& at, F&& f) const {
  while (begin >= at.begin + tensors_[at.tensor].count) at.begin += tensors_[at.tensor++].count;
  At now = at;
  for (int64_t done = 0; done < count;) {
    const LaneTensor& t = tensors_[now.tensor];
    const int64_t offset = begin + done - now.begin;
    const int64_t n = std::min(count - done, t.count - offset);
    if (n > 0) f(t, offset, done, n);
    done += n;
    now.begin += t.count;
    ++now.tensor;
  }
}

// f(tensor, offset in it, whose part, offset in the chunk, count) for what others own of a chunk;
// inline nobody owns anything, and it is for the whole chunk.
template <typename F>
void LaneStream::ForOthersParts(uint64_t chunk, At& at, F&& f) const {
  for (int m = 0; m < (inline_ ? 1 : group_.size()); ++m) {
    const auto [begin, end] = inline_ ? std::pair{int64_t{0}, Size(chunk)} : PartOf(chunk, m);
    if (end == begin || (m == group_.me && !inline_)) continue;
    ForRange(Begin(chunk) + begin, end - begin, at,
             [&, part = begin](const LaneTensor& t, int64_t offset, int64_t in_range, int64_t n) {
               f(t, offset, m, part + in_range, n);
             });
  }
}

// --- the three phases

// Ranks that share a core leave more in its caches than two that have one each.
bool LaneStream::PastCaches() const {
  return group_.crowded && !inline_ && reduction_.prescale == 1.0 && distance_.far();
}

// At each of the others in turn: some of them share my core.
void LaneStream::LookForDistance() {
  if (!group_.crowded) return;
  const auto others = static_cast<uint64_t>(group_.size() - 1);
  const int next = 1 + static_cast<int>((first_ + reduced_) % others);
  const int other = (group_.me + next) % group_.size();
  distance_.Look(other, group_.words(other).beat);
}

void LaneStream::Pack() {
  FaultPoint(FaultPhase::kCopyIn);
  LaneWords& mine = group_.mine();
  if (!checked_ && packed_ == 0) group_.Announce(first_, reduction_.bucket, in_place_.layout());
  if (!whole_) {
    std::byte* slot = Slot(group_.me, packed_);
    const bool past_caches = PastCaches();
    ForOthersParts(packed_, pack_at_,
                   [&](const LaneTensor& t, int64_t offset, int, int64_t at, int64_t n) {
                     const std::byte* const from = t.input + offset * element_;
                     std::byte* const to = slot + at * element_;
                     if (past_caches) return CopyPastCaches(from, to, n * element_);
                     ScaleInto(reduction_.dtype, reduction_.prescale, from, to, n);
                   });
    if (past_caches && group_.past_caches != nullptr) group_.past_caches->Add();
  }
  ++packed_;
  if (group_.crowded) mine.beat.store(first_ + packed_, std::memory_order_relaxed);
  mine.packed.store(first_ + packed_, std::memory_order_release);
  if (inline_) mine.reduced.store(first_ + packed_, std::memory_order_release);
  group_.RingOthers();
}

void LaneStream::Reduce() {
  FaultPoint(FaultPhase::kReduce);
  if (whole_) {
    if (!ReduceInPlace()) return;
  } else {
    LookForDistance();
    ReduceChunk();
  }
  ++reduced_;
  group_.mine().reduced.store(first_ + reduced_, std::memory_order_release);
  group_.RingOthers();
}

void LaneStream::Take() {
  FaultPoint(FaultPhase::kCopyOut);
  if (inline_) {
    TakeInline();
  } else if (whole_) {
    if (group_.in_place != nullptr) group_.in_place->Add();
  } else {
    TakeOthersParts();
  }
  ++taken_;
  group_.mine().taken.store(first_ + taken_, std::memory_order_release);
  group_.RingOthers();
}

// --- in place

// A piece of my part; true when it was the last.
bool LaneStream::ReduceInPlace() {
  const auto [begin, end] = PartOf(0, group_.me);
  const int64_t left = end - begin - reduced_whole_;
  const int64_t now = std::min(left, kStepBytes / element_);
  if (now > 0) {
    ForRange(begin + reduced_whole_, now, reduce_at_,
             [&](const LaneTensor& t, int64_t offset, int64_t, int64_t n) {
               ReduceCopies(t, offset, n);
             });
  }
  reduced_whole_ += now;
  return now == left;
}

void LaneStream::ReduceCopies(const LaneTensor& t, int64_t offset, int64_t n) {
  const auto tensor = static_cast<size_t>(&t - tensors_.data());
  inputs_.clear();
  copies_.clear();
  for (int m = 0; m < group_.size(); ++m) {
    const int rank = group_.members[static_cast<size_t>(m)];
    std::byte* const copy = in_place_.Copy(tensor, rank) + offset * element_;
    inputs_.push_back(copy);
    if (m != group_.me) copies_.push_back(copy);
  }
  ReduceInto(reduction_.kind, reduction_.dtype, reduction_.scale, inputs_,
             t.output + offset * element_, n, copies_);
}

// --- streamed

void LaneStream::ReduceChunk() {
  const auto [begin, end] = PartOf(reduced_, group_.me);
  if (end == begin) return;
  ForRange(Begin(reduced_) + begin, end - begin, reduce_at_,
           [&, part = begin](const LaneTensor& t, int64_t offset, int64_t at, int64_t n) {
             ReducePiece(t, offset, part + at, n);
           });
}

// `n` elements of my part, at `offset` in the tensor and `at` in the slots.
void LaneStream::ReducePiece(const LaneTensor& t, int64_t offset, int64_t at, int64_t n) {
  const std::byte* own = t.input + offset * element_;
  if (reduction_.prescale != 1.0) {
    std::byte* const scaled = Slot(group_.me, reduced_) + at * element_;
    ScaleInto(reduction_.dtype, reduction_.prescale, own, scaled, n);
    own = scaled;
  }
  inputs_.clear();
  for (int m = 0; m < group_.size(); ++m)
    inputs_.push_back(m == group_.me ? own : Slot(m, reduced_) + at * element_);
  std::byte* const result = Result(group_.me, reduced_) + at * element_;
  ReduceInto(reduction_.kind, reduction_.dtype, reduction_.scale, inputs_,
             t.output + offset * element_, n, {&result, 1});
}

void LaneStream::TakeOthersParts() {
  ForOthersParts(taken_, take_at_,
                 [&](const LaneTensor& t, int64_t offset, int m, int64_t at, int64_t n) {
                   std::memcpy(t.output + offset * element_, Result(m, taken_) + at * element_,
                               static_cast<size_t>(n * element_));
                 });
}

void LaneStream::TakeInline() {
  FaultPoint(FaultPhase::kReduce);
  ForRange(Begin(taken_), Size(taken_), take_at_,
           [&](const LaneTensor& t, int64_t offset, int64_t at, int64_t n) {
             inputs_.clear();
             for (int m = 0; m < group_.size(); ++m)
               inputs_.push_back(Slot(m, taken_) + at * element_);
             ReduceInto(reduction_.kind, reduction_.dtype, reduction_.scale, inputs_,
                        t.output + offset * element_, n);
           });
}

}  // namespace horon
