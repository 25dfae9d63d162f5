#include "runtime/transport/lane.h"

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

// A member can have packed as many chunks of a bucket that was given back as there are slots.
void Lane::SkipChunks(uint64_t ticket) {
  if (skips_.empty() || skips_.front() > ticket) return;
  for (; !skips_.empty() && skips_.front() <= ticket; skips_.pop_front())
    done_chunks_ += group_.slots();
  group_.MoveTo(done_chunks_);
}

Task Lane::Allreduce(uint64_t ticket, std::vector<LaneTensor> tensors, LaneReduction reduction,
                     Phases* phases) {
  Turn turn(*this, ticket);
  co_await Until(turn);
  SkipChunks(ticket);
  std::erase_if(tensors, [](const LaneTensor& t) { return t.count == 0; });
  if (phases != nullptr) phases->Begin();
  LaneStream stream(group_, done_chunks_, tensors, reduction, phases);
  while (!stream.done()) {
    if (!stream.Step()) co_await Until(stream);
    HORON_CO_TRY(stream.status());
    if (stream.paused()) {
      Pause pause;
      co_await Until(pause);
    }
  }
  done_chunks_ = stream.end();
  ++serving_;
  co_return Status::Ok();
}

}  // namespace horon
