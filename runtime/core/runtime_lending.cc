// Waiting on a user's thread: it takes the baton, if it can, and runs the cycle itself.
#include <algorithm>

#include "runtime/base/look.h"
#include "runtime/core/runtime.h"

namespace horon {

namespace {
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kHopeLook{1};  // a wait looks this often whether it can still end

// Once, however often this thread comes back to it.
void RecordWait(const std::shared_ptr<Recorder>& recorder, const Work& work) {
  if (recorder) recorder->AddOnce(EventKind::kWaits, work.first()->key, work.number());
}
}  // namespace

bool Runtime::Wait(Work& work, std::chrono::nanoseconds limit, bool looks) {
  if (work.done()) {
    NoteLoss(work);
    return true;
  }
  auto now = Clock::now();
  const auto until = now + std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(24 * 365));
  const TimeUse::Waiting waiting(time_use_.get());
  Mark mark;  // over all pieces: between two of them the thread waits all the same
  for (;; now = Clock::now()) {
    const auto piece = looks ? UntilLook(until - now) : until - now;
    if (WaitPiece(work, now + piece, mark)) return true;
    if (without_hope() || Clock::now() >= until) return work.done();
    if (looks && !GoOn(mark ? &*mark : nullptr).ok()) return false;
  }
}

bool Runtime::WaitPiece(Work& work, Clock::time_point until, Mark& mark) {
  if (may_lend_) Lend(work, until, mark);
  if (work.done()) {
    NoteLoss(work);
    return true;
  }
  MarkWaiting(mark, work);
  bell_->Ring();  // a submit that left waking to us must not be forgotten
  for (auto now = Clock::now(); now < until && !without_hope_.load(std::memory_order_relaxed);
       now = Clock::now()) {
    if (work.WaitFor(std::min<std::chrono::nanoseconds>(until - now, kHopeLook))) return true;
  }
  return work.done();
}

// Whom the others waited for is read from the recorders, also when the news came before this
// thread had slept.
void Runtime::NoteLoss(const Work& work) {
  const Code code = work.status().code();
  const bool lost = code == Code::kAborted || code == Code::kUnavailable;
  if (lost && work.first()) RecordWait(recorder_, work);
}

// From here on this thread counts as blocked: it sleeps.
void Runtime::MarkWaiting(Mark& mark, const Work& work) {
  if (mark) return;
  const SharedRegistration& first = work.first();
  if (!first) return;  // an order to the windows' engine
  mark.emplace(callers_, Callers::Key(first, &first->key));
  RecordWait(recorder_, work);
}

void Runtime::Lend(Work& work, Clock::time_point until, Mark& mark) {
  baton_.Want(1);
  bool taken = baton_.TryTake();
  const auto give_up = Clock::now() + config_.spin;
  while (!taken && !work.done() && !crowded_ && Clock::now() < give_up) taken = baton_.TryTake();
  baton_.Want(-1);
  if (!taken) {
    bell_->Ring();  // the background thread may have given way to us
    return;
  }
  bell_->Awake();
  hurry_ = true;
  while (!work.done() && !leaving_.load(std::memory_order_relaxed) && Clock::now() < until) {
    if (CycleMoved() || LookAgain(config_.spin)) continue;
    MarkWaiting(mark, work);
    SleepAsLender(work, until);
  }
  // Back to the background thread, which sleeps. Announced before the last look, like any sleep.
  bell_->Announce(Sleeper());
  const bool more = CycleMoved() || !queue_.empty() || leaving_.load(std::memory_order_relaxed) ||
                    MustWakeBackground();
  bell_->Announce(Sleeper());  // that look may have finished all: then only messages concern it
  hurry_ = false;
  FlushRings();
  baton_.Give();
  if (more) bell_->Wake(Doorbell::kAnyBackground);
}

void Runtime::SleepAsLender(const Work& work, Clock::time_point until) {
  const uint32_t ticket = bell_->Announce(Doorbell::kLender);
  if (!CycleMoved() && !work.done()) {
    const std::chrono::nanoseconds left =
        std::max<std::chrono::nanoseconds>(until - Clock::now(), std::chrono::nanoseconds{0});
    const auto limit = std::min(SleepLimit(), left);
    BackOff();
    FlushRings();
    const Awaiting awaiting(*this);
    bell_->Sleep(ticket, Doorbell::kLender, limit);
  }
  bell_->Awake();
}

}  // namespace horon
