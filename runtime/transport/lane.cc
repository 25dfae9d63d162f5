#include "runtime/transport/lane.h"

#include <utility>

#include "runtime/transport/lane_stream.h"

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

// Ready in the next round of the cycle. (The first two looks are of this round.)
class Lane::Pause final : public Waitable {
 public:
  bool Ready() override { return ++looks_ > 2; }

 private:
  int looks_ = 0;
};

// A member can have packed as many chunks of a bucket that was given back as there are slots, or as
// its memory for rows holds.
uint64_t Lane::MostPacked() const {
  const auto row = static_cast<uint64_t>(group_.segment->shape().row_bytes / kDotBlock);
  return (row / group_.slots() + 1) * group_.slots();
}

void Lane::SkipChunks(uint64_t ticket) {
  if (skips_.empty() || skips_.front() > ticket) return;
  for (; !skips_.empty() && skips_.front() <= ticket; skips_.pop_front())
    done_chunks_ += MostPacked();
  group_.MoveTo(done_chunks_);
}

void Lane::BeginTurn(uint64_t ticket, Phases* phases) {
  SkipChunks(ticket);
  phases_ = phases;
  if (phases != nullptr) phases->Begin();
}

Task Lane::Allreduce(uint64_t ticket, RecycledVector<LaneTensor> tensors, LaneReduction reduction,
                     Phases* phases) {
  Turn turn(*this, ticket);
  co_await Until(turn);
  BeginTurn(ticket, phases);
  std::erase_if(tensors, [](const LaneTensor& t) { return t.count == 0; });
  LaneStream stream(group_, distance_, done_chunks_, tensors, reduction, phases);
  while (!stream.done()) {
    if (!stream.Step()) co_await Until(stream);
    HORON_CO_TRY(stream.status());
    if (stream.paused()) {
      Pause pause;
      co_await Until(pause);
    }
  }
  done_chunks_ = stream.end();
  Served();
  co_return Status::Ok();
}

Task Lane::Await(uint64_t ticket, Phases* phases) {
  Turn turn(*this, ticket);
  co_await Until(turn);
  BeginTurn(ticket, phases);
  co_return Status::Ok();
}

Task Lane::Swap(LaneSwap& swap, LaneSwap::Pass pass, LaneSwap::Meet meet) {
  swap.Begin(pass, std::move(meet), phases_);
  while (!swap.done()) {
    if (!swap.Step()) co_await Until(swap);
    HORON_CO_TRY(swap.status());
  }
  done_chunks_ = swap.end();
  if (pass != LaneSwap::Pass::kMore && group_.swapped != nullptr) group_.swapped->Add();
  co_return Status::Ok();
}

}  // namespace horon
