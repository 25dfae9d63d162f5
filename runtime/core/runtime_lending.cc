// Waiting on a user's thread: it takes the baton, if it can, and runs the cycle itself.
#include <sched.h>

#include <algorithm>

#include "runtime/base/look.h"
#include "runtime/core/runtime.h"

namespace horon {

namespace {
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kHopeLook{1};  // a wait looks this often whether it can still end
constexpr std::chrono::milliseconds kMostLinger{20};

// Once, however often this thread comes back to it.
void RecordWait(const std::shared_ptr<Recorder>& recorder, const Work& work) {
  const SharedRegistration& what = work.first();
  if (recorder) recorder->AddOnce(EventKind::kWaits, what->key, work.number() + what->tensor_id);
}
}  // namespace

bool Runtime::Wait(Work& work, std::chrono::nanoseconds limit, bool looks) {
  Work* const alone = &work;
  const Work::Caller caller(work);
  return Wait(std::span<Work* const>(&alone, 1), limit, looks);
}

bool Runtime::Wait(std::span<Work* const> all, std::chrono::nanoseconds limit, bool looks) {
  Work::NoteWait();
  Awaited works(all);
  if (works.done()) {
    NoteLosses(all);
    return true;
  }
  auto now = Clock::now();
  const auto until = now + std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(24 * 365));
  const TimeUse::Waiting waiting(time_use_.get());
  for (;; now = Clock::now()) {
    const auto piece = looks ? UntilLook(until - now) : until - now;
    if (WaitPiece(works, now + piece)) return true;
    if (without_hope() || Clock::now() >= until) return works.done();
    if (looks && !GoOn(works.mark()).ok()) return false;
  }
}

bool Runtime::WaitPiece(Awaited& works, Clock::time_point until) {
  if (may_lend_) Lend(works, until);
  for (auto now = Clock::now(); !works.done(); now = Clock::now()) {
    if (now >= until || without_hope_.load(std::memory_order_relaxed)) return false;
    MarkWaiting(works);
    bell_->Ring();  // a submit that left waking to us must not be forgotten
    const auto piece = std::min<std::chrono::nanoseconds>(until - now, kHopeLook);
    const bool more = works.first().WaitFor(piece) && !works.done();
    if (more && may_lend_) Lend(works, until);
  }
  NoteLosses(works.all());
  return true;
}

// Whom the others waited for is read from the recorders, also when the news came before this
// thread had slept.
void Runtime::NoteLosses(std::span<Work* const> works) {
  for (const Work* const work : works) {
    const Code code = work->status().code();
    const bool lost = code == Code::kAborted || code == Code::kUnavailable;
    if (lost && work->first()) RecordWait(recorder_, *work);
  }
}

// From here on this thread counts as blocked: it sleeps.
void Runtime::MarkWaiting(Awaited& works) {
  if (works.Mark(callers_)) RecordWait(recorder_, works.first());
}

void Runtime::Lend(Awaited& works, Clock::time_point until) {
  baton_.Want(1);
  bool taken = baton_.TryTake();
  const auto give_up = Clock::now() + config_.spin;
  while (!taken && !works.done() && !crowded_ && Clock::now() < give_up) {
    sched_yield();  // its holder may have lost this core to this thread, which it woke
    taken = baton_.TryTake();
  }
  baton_.Want(-1);
  if (!taken) {
    bell_->Ring();  // the background thread may have given way to us
    return;
  }
  bell_->Awake();
  hurry_ = true;
  while (!works.done() && !leaving_.load(std::memory_order_relaxed) && Clock::now() < until) {
    if (CycleMoved() || LookAgain(config_.spin)) continue;
    MarkWaiting(works);
    SleepAsLender(works, until);
  }
  if (works.done()) FinishOthers();
  GiveBack();
}

// In a job of one rank a tensor of a GPU is only launched, which takes the thread that submits it
// less than waking the background thread does. So it does so by itself, where that sleeps, nothing
// is under way, and the GPU is open. But one that comes soon after another, with no wait between, is
// one of many: the background thread, once awake, looks for them (LookForMore), and launches some as
// one. With other ranks there are calls of NCCL's that wait for them, which must not hold what a
// user's thread holds: Python's lock.
bool Runtime::LendToSubmit() {
  const auto now = Clock::now();
  const bool waited = Work::TakeWaited();
  const auto last = submitted_to_gpu_at_.exchange(now, std::memory_order_relaxed);
  const bool one_of_many = !waited && now - last < kMoreSpins * config_.spin;
  if (!may_lend_ || fabric_.topology.size() > 1 || one_of_many) return false;
  if (!baton_.TryTake()) return false;
  const bool idle = executor_.idle() && negotiator_.idle() && peers_.idle();
  if (!idle || !executor_.gpus_open()) {
    baton_.Give();
    return false;
  }
  bell_->Awake();
  lent_to_submits_.Add(CycleMoved());
  GiveBack();
  return true;
}

// To the background thread, which sleeps. Announced before the last look, like any sleep.
void Runtime::GiveBack() {
  bell_->Announce(Sleeper());
  const bool more = CycleMoved() || !queue_.empty() || leaving_.load(std::memory_order_relaxed) ||
                    MustWakeBackground();
  bell_->Announce(Sleeper());  // that look may have finished all: then only messages concern it
  hurry_ = false;
  FlushRings();
  baton_.Give();
  if (more) bell_->Wake(Doorbell::kAnyBackground);
}

// Buckets that are under way would go on in the background thread. With no core to spare that would
// take turns with a rank's thread that reduces, for milliseconds at a time, and so would this one
// when it waits for the next of them: who has what it waited for goes on as long as they move.
void Runtime::FinishOthers() {
  if (crowded_ || !no_spare_core()) return;
  const auto until = Clock::now() + kMostLinger;
  while (!executor_.idle() && !leaving_.load(std::memory_order_relaxed) && Clock::now() < until) {
    if (baton_.wanted() || (!CycleMoved() && !LookAgain(config_.spin))) return;
  }
}

void Runtime::SleepAsLender(Awaited& works, Clock::time_point until) {
  const uint32_t ticket = bell_->Announce(Doorbell::kLender);
  if (!CycleMoved() && !works.done()) {
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
