#include "runtime/transport/lane.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/fault.h"
#include "runtime/transport/collectives.h"

namespace horon {

// Waits for the bucket's place in the queue.
class Lane::Turn final : public Waitable {
 public:
  Turn(const Lane& lane, uint64_t ticket) : lane_(lane), ticket_(ticket) {}
  bool Ready() override { return lane_.serving_ == ticket_; }

 private:
  const Lane& lane_;
  uint64_t ticket_;
};

// One bucket on its way through the lane. Ready when one of its three cursors can move.
class Lane::Stream final : public Waitable {
 public:
  Stream(Lane& lane, std::span<const LaneTensor> tensors, LaneReduction reduction, Phases* phases)
      : lane_(lane),
        tensors_(tensors),
        reduction_(reduction),
        phases_(phases),
        element_(SizeOf(reduction.dtype)),
        first_(lane.done_chunks_),
        slots_(static_cast<uint64_t>(lane.segment_->shape().slots)) {
    for (const LaneTensor& t : tensors) count_ += t.count;
    chunk_ = lane.segment_->shape().chunk_bytes / element_;
    chunks_ = static_cast<uint64_t>((count_ + chunk_ - 1) / chunk_);
    inline_ = count_ * element_ <= kInlineBytes;
  }

  uint64_t chunks() const { return chunks_; }
  bool done() const { return taken_ == chunks_; }
  const Status& status() const { return status_; }
  bool Ready() override { return CanPack() || CanReduce() || CanTake(); }

  // Moves what can move; the latest phase first, because it frees slots.
  bool Step() {
    if (!checked_ && (CanTake() || CanReduce())) {
      Check();
    } else if (CanTake()) {
      if (phases_ != nullptr) phases_->Arrived();
      const PhaseTimer timer(phases_, &Phases::unpacking);
      inline_ ? TakeInline() : Take();
    } else if (CanReduce()) {
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

 private:
  enum class Phase { kPacked, kReduced, kTaken };
  static constexpr int64_t kBlockBytes = 8 << 10;  // what is reduced, then copied out of the cache

  // The lowest count among the members, mine included.
  bool AllReached(Phase phase, uint64_t chunk) {
    for (int member : lane_.members_) {
      LaneWords& words = lane_.segment_->lane(lane_.lane_, member);
      const auto& word = phase == Phase::kPacked    ? words.packed
                         : phase == Phase::kReduced ? words.reduced
                                                    : words.taken;
      if (word.load(std::memory_order_acquire) < chunk) return false;
    }
    return true;
  }
  LaneWords& mine() {
    return lane_.segment_->lane(lane_.lane_, lane_.members_[static_cast<size_t>(lane_.me_)]);
  }
  std::byte* Slot(int member_index, uint64_t chunk) {
    return lane_.segment_->slot(lane_.lane_, lane_.members_[static_cast<size_t>(member_index)],
                                static_cast<int>((first_ + chunk) % slots_));
  }
  int64_t Begin(uint64_t chunk) const { return static_cast<int64_t>(chunk) * chunk_; }
  int64_t Size(uint64_t chunk) const { return std::min(chunk_, count_ - Begin(chunk)); }
  int members() const { return static_cast<int>(lane_.members_.size()); }
  // Parts begin at whole cache lines, so that no two ranks write into one.
  std::pair<int64_t, int64_t> PartOf(uint64_t chunk, int member) const {
    const int64_t line = std::max<int64_t>(1, static_cast<int64_t>(kCacheLine) / element_);
    const int64_t lines = (Size(chunk) + line - 1) / line;
    const int64_t begin = std::min(Size(chunk), PartBegin(lines, members(), member) * line);
    const int64_t end = std::min(Size(chunk), PartBegin(lines, members(), member + 1) * line);
    return {begin, end};
  }

  bool CanPack() {
    if (packed_ == chunks_) return false;
    const uint64_t absolute = first_ + packed_;
    return absolute < slots_ || AllReached(Phase::kTaken, absolute - slots_ + 1);
  }
  bool CanReduce() {
    return !inline_ && reduced_ < packed_ && AllReached(Phase::kPacked, first_ + reduced_ + 1);
  }
  bool CanTake() {
    if (inline_) return taken_ < packed_ && AllReached(Phase::kPacked, first_ + taken_ + 1);
    return taken_ < reduced_ && AllReached(Phase::kReduced, first_ + taken_ + 1);
  }

  // All have packed the first chunk: is it of the same bucket?
  void Check() {
    checked_ = true;
    for (int member : lane_.members_) {
      const auto& bucket = lane_.segment_->lane(lane_.lane_, member).bucket[first_ % slots_];
      if (bucket.load(std::memory_order_relaxed) == reduction_.bucket) continue;
      status_ = Status::Internal("local rank " + std::to_string(member) +
                                 " runs another bucket of tensors than this rank");
    }
  }

  // f(tensor, offset in it, offset in the range, count) for the elements [begin, begin + count) of
  // the row.
  template <typename F>
  void ForRange(int64_t begin, int64_t count, size_t& tensor, int64_t& tensor_begin, F&& f) {
    while (begin >= tensor_begin + tensors_[tensor].count) tensor_begin += tensors_[tensor++].count;
    size_t at = tensor;
    int64_t at_begin = tensor_begin;
    for (int64_t done = 0; done < count;) {
      const LaneTensor& t = tensors_[at];
      const int64_t offset = begin + done - at_begin;
      const int64_t n = std::min(count - done, t.count - offset);
      if (n > 0) f(t, offset, done, n);
      done += n;
      at_begin += t.count;
      ++at;
    }
  }

  // f(tensor, offset in it, whose part, offset in the chunk, count) for what others own of a chunk;
  // inline nobody owns anything, and it is for the whole chunk.
  template <typename F>
  void ForOthersParts(uint64_t chunk, size_t& tensor, int64_t& tensor_begin, F&& f) {
    for (int m = 0; m < (inline_ ? 1 : members()); ++m) {
      const auto [begin, end] = inline_ ? std::pair{int64_t{0}, Size(chunk)} : PartOf(chunk, m);
      if (end == begin || (m == lane_.me_ && !inline_)) continue;
      ForRange(Begin(chunk) + begin, end - begin, tensor, tensor_begin,
               [&, part = begin](const LaneTensor& t, int64_t offset, int64_t at, int64_t n) {
                 f(t, offset, m, part + at, n);
               });
    }
  }

  void Pack() {
    FaultPoint(FaultPhase::kCopyIn);
    std::byte* slot = Slot(lane_.me_, packed_);
    if (packed_ == 0)
      mine().bucket[first_ % slots_].store(reduction_.bucket, std::memory_order_relaxed);
    ForOthersParts(packed_, pack_tensor_, pack_begin_,
                   [&](const LaneTensor& t, int64_t offset, int, int64_t at, int64_t n) {
                     ScaleInto(reduction_.dtype, reduction_.prescale, t.input + offset * element_,
                               slot + at * element_, n);
                   });
    ++packed_;
    mine().packed.store(first_ + packed_, std::memory_order_release);
    if (inline_) mine().reduced.store(first_ + packed_, std::memory_order_release);
    lane_.Ring();
  }

  void Reduce() {
    FaultPoint(FaultPhase::kReduce);
    const auto [begin, end] = PartOf(reduced_, lane_.me_);
    if (end > begin) {
      ForRange(Begin(reduced_) + begin, end - begin, reduce_tensor_, reduce_begin_,
               [&, part = begin](const LaneTensor& t, int64_t offset, int64_t at, int64_t n) {
                 for (int64_t done = 0; done < n; done += kBlockBytes / element_)
                   ReduceBlock(t, offset + done, part + at + done,
                               std::min(n - done, kBlockBytes / element_));
               });
    }
    ++reduced_;
    mine().reduced.store(first_ + reduced_, std::memory_order_release);
    lane_.Ring();
  }

  // Where a member's part is once it is reduced: in the next member's slot, where it read an input.
  std::byte* Result(int member, uint64_t chunk) { return Slot((member + 1) % members(), chunk); }

  // `n` elements of my part, at `offset` in the tensor and `at` in the slots. The result goes to
  // the others while the cache has it.
  void ReduceBlock(const LaneTensor& t, int64_t offset, int64_t at, int64_t n) {
    const std::byte* own = t.input + offset * element_;
    if (reduction_.prescale != 1.0) {
      std::byte* const scaled = Slot(lane_.me_, reduced_) + at * element_;
      ScaleInto(reduction_.dtype, reduction_.prescale, own, scaled, n);
      own = scaled;
    }
    inputs_.clear();
    for (int m = 0; m < members(); ++m)
      inputs_.push_back(m == lane_.me_ ? own : Slot(m, reduced_) + at * element_);
    std::byte* const output = t.output + offset * element_;
    ReduceInto(reduction_.kind, reduction_.dtype, reduction_.scale, inputs_, output, n);
    std::memcpy(Result(lane_.me_, reduced_) + at * element_, output,
                static_cast<size_t>(n * element_));
  }

  void Take() {
    FaultPoint(FaultPhase::kCopyOut);
    ForOthersParts(taken_, take_tensor_, take_begin_,
                   [&](const LaneTensor& t, int64_t offset, int m, int64_t at, int64_t n) {
                     std::memcpy(t.output + offset * element_, Result(m, taken_) + at * element_,
                                 static_cast<size_t>(n * element_));
                   });
    FinishTaking();
  }

  void TakeInline() {
    FaultPoint(FaultPhase::kReduce);
    FaultPoint(FaultPhase::kCopyOut);
    ForRange(Begin(taken_), Size(taken_), take_tensor_, take_begin_,
             [&](const LaneTensor& t, int64_t offset, int64_t at, int64_t n) {
               inputs_.clear();
               for (int m = 0; m < members(); ++m)
                 inputs_.push_back(Slot(m, taken_) + at * element_);
               ReduceInto(reduction_.kind, reduction_.dtype, reduction_.scale, inputs_,
                          t.output + offset * element_, n);
             });
    FinishTaking();
  }

  void FinishTaking() {
    ++taken_;
    mine().taken.store(first_ + taken_, std::memory_order_release);
    lane_.Ring();
  }

  Lane& lane_;
  std::span<const LaneTensor> tensors_;
  LaneReduction reduction_;
  Phases* phases_;
  int64_t element_;
  uint64_t first_, slots_;
  int64_t count_ = 0, chunk_ = 0;
  uint64_t chunks_ = 0, packed_ = 0, reduced_ = 0, taken_ = 0;
  bool inline_ = false, checked_ = false;
  Status status_;
  // Where the three cursors are.
  size_t pack_tensor_ = 0, reduce_tensor_ = 0, take_tensor_ = 0;
  int64_t pack_begin_ = 0, reduce_begin_ = 0, take_begin_ = 0;
  std::vector<const std::byte*> inputs_;
};

Lane::Lane(std::shared_ptr<SharedSegment> segment, int lane, std::vector<int> members, int me)
    : segment_(std::move(segment)), lane_(lane), members_(std::move(members)), me_(me) {}

void Lane::Ring() {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (static_cast<int>(i) != me_)
      segment_->rank(members_[i]).bell.Ring(Doorbell::kBackground | Doorbell::kLender);
  }
}

// A member can have packed as many chunks of a bucket that was given back as there are slots.
void Lane::SkipChunks(uint64_t ticket) {
  if (skips_.empty() || skips_.front() > ticket) return;
  for (; !skips_.empty() && skips_.front() <= ticket; skips_.pop_front())
    done_chunks_ += static_cast<uint64_t>(segment_->shape().slots);
  LaneWords& words = segment_->lane(lane_, members_[static_cast<size_t>(me_)]);
  words.packed.store(done_chunks_, std::memory_order_release);
  words.reduced.store(done_chunks_, std::memory_order_release);
  words.taken.store(done_chunks_, std::memory_order_release);
  Ring();
}

Task Lane::Allreduce(uint64_t ticket, std::vector<LaneTensor> tensors, LaneReduction reduction,
                     Phases* phases) {
  Turn turn(*this, ticket);
  co_await Until(turn);
  SkipChunks(ticket);
  std::erase_if(tensors, [](const LaneTensor& t) { return t.count == 0; });
  if (phases != nullptr) phases->Begin();
  Stream stream(*this, tensors, reduction, phases);
  while (!stream.done()) {
    if (!stream.Step()) co_await Until(stream);
    HORON_CO_TRY(stream.status());
  }
  done_chunks_ += stream.chunks();
  ++serving_;
  co_return Status::Ok();
}

}  // namespace horon
