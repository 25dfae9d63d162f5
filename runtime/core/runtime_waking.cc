// When submitted work wakes whom.
#include <limits>

#include "runtime/core/runtime.h"

namespace horon {

// What a steady job's queue holds back while nobody waits. Each wake-up costs the user's threads
// some 20 us of a core: too much for every gradient. With no core to spare the background thread
// could only take turns with them, so it is left asleep until somebody waits. Between nodes links
// would lie idle meanwhile: nothing is held back. The same on all ranks of a job: batches are cut
// by it.
int64_t Runtime::HoldBytes(const Topology& topology, const SharedSegment* segment) {
  if (topology.nodes() > 1 || segment == nullptr) return 0;
  return segment->spare_core() ? kWorthWaking : std::numeric_limits<int64_t>::max();
}

Status Runtime::Submit(std::span<Submission> submissions, const std::shared_ptr<Work>& work,
                       bool wake) {
  for (const Submission& s : submissions)
    Record(recorder_, EventKind::kSubmitted, s.what->request.name, s.what->bytes);
  const SharedRegistration& first = submissions[0].what;
  work->Expect(first);
  callers_.Submitted(Callers::Key(first, &first->key));
  const bool on_gpu = submissions[0].ready != nullptr;
  Queue::Wish wish = Queue::Wish::kNothing;
  Status pushed = queue_.Push(submissions, work, wake ? &wish : nullptr, timeline_.Stamp());
  if (!pushed.ok()) {
    work->Unexpect();
    return pushed;
  }
  const bool ring =
      wish == Queue::Wish::kRing || (wish == Queue::Wish::kRingIfAwaited && bell_->Hold());
  if (ring && !(on_gpu && LendToSubmit())) bell_->Ring();
  return Status::Ok();
}

Status Runtime::Submit(Order order, const std::shared_ptr<Work>& work, bool wake) {
  const auto promise = std::make_shared<Promise>(work, 0, nullptr);
  order.done = [promise](const Status& status, std::vector<int64_t> unreached,
                         SharedEvent written) {
    promise->output().received_splits = std::move(unreached);
    promise->output().done = std::move(written);
    promise->Finish(status);
  };
  HORON_TRY(peers_.Submit(std::move(order)));
  if (wake) bell_->Ring();
  return Status::Ok();
}

void Runtime::Nudge() {
  if (!bell_->holds()) return;
  nudged_.store(true);
  bell_->Ring();
}

// In a locked schedule a submit wakes nobody before a batch is complete and large enough. False if
// there is such a one already.
bool Runtime::RingWhenNeeded() {
  const size_t wanted = negotiator_.wanted();
  const int64_t bytes = negotiator_.locked() ? hold_bytes_ : 0;
  const bool same = wanted == wanted_ && bytes == wanted_bytes_;
  wanted_ = wanted;
  wanted_bytes_ = bytes;
  return same || queue_.RingFrom(wanted, bytes);
}

// A peer whose queue holds back what this rank waits for must not: from before this rank sleeps
// until it wakes. What is not agreed yet this rank itself may hold back, unless somebody is blocked.
Runtime::Awaiting::Awaiting(Runtime& runtime) {
  const bool blocked = runtime.hurry_ || !runtime.may_lend_;
  const bool agreeing = blocked && !runtime.negotiator_.locked() && !runtime.negotiator_.idle();
  const bool moving = runtime.negotiator_.locked() && !runtime.executor_.idle();
  if (runtime.hold_bytes_ == 0 || !(agreeing || moving)) return;
  segment_ = runtime.segment_.get();
  me_ = runtime.local_rank();
  ForEachPeer([](Doorbell& bell) { bell.Await(); });
}

Runtime::Awaiting::~Awaiting() {
  ForEachPeer([](Doorbell& bell) { bell.AwaitNoMore(); });
}

}  // namespace horon
