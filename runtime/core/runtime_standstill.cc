// The watchdog's part of the runtime: what is to be done when its own thread is stuck.
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/look.h"
#include "runtime/core/runtime.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
// A job that has failed is cleaned up within so long, or never.
constexpr milliseconds kHope{2000};
// One whose runtime has not moved for so long leaves it to others to find out what is amiss.
constexpr milliseconds kStands{2000};
// While others of the node wait for this rank, or it for rank 0, it looks so often.
constexpr milliseconds kAskedAgain{1000};
// While it finds something out for other nodes, or of them, so often.
constexpr milliseconds kFindsOut{250};
// The background thread only has to see that it is over, on a machine that may be busy.
constexpr milliseconds kEndWait{10000}, kHopelessEndWait{500};

}  // namespace

// How long rank 0 owes an answer. A runtime that does not move might have one that it has not read.
milliseconds Runtime::Unanswered(uint64_t cycles, Standstill::Clock::time_point now) {
  if (std::exchange(looked_at_cycles_, cycles) == cycles) return unanswered_;
  const milliseconds since{unanswered_ms_.load(std::memory_order_relaxed)};
  const auto so_far = std::chrono::duration_cast<milliseconds>(now.time_since_epoch()) - since;
  return unanswered_ = rank_ == 0 || since.count() == 0 ? milliseconds{0} : so_far;
}

// With other nodes; whether this rank's own lookout is to say nothing.
bool Runtime::FindOut(const Lookout::Look& look) {
  inquest_.Step(lookout_, look.now, standstill_.standing_for() < kStands);
  if (std::vector<Letter> letters = inquest_.TakeLetters(); !letters.empty()) {
    letters_.Send(std::move(letters));
    bell_->Ring();
  }
  if (const auto report = inquest_.MustSay()) Log(LogLevel::kWarn, "watchdog", *report);
  return inquest_.speaks();
}

milliseconds Runtime::WatchOver() {
  const Activity activity = callers_.Snapshot();
  const auto now = Standstill::Clock::now();
  const int holder = holder_.load(std::memory_order_relaxed);
  const uint64_t cycles = cycles_->load(std::memory_order_relaxed);
  const bool unmoved = standstill_.See({cycles, !activity.waits.empty(), now});
  for (const Letter& letter : letters_.Take()) inquest_.Hear(letter, now);
  const Lookout::Look look{activity, holder, Unanswered(cycles, now), now,
                           inquest_.asked(), inquest_.judge()};
  lookout_.See(look);
  if (lookout_.asked()) callers_.inquiries()->Ask();      // for the next notice
  if (unmoved || unanswered_.count() > 0) bell_->Ring();  // who sleeps runs a cycle then
  const bool failed = losses_->any() || (segment_ && !segment_->Deaths(local_rank()).ok());
  const bool hopeless = failed && standstill_.standing_for() >= kHope;
  if ((hopeless || lookout_.complete()) && standstill_.MustSay(hopeless)) {
    const std::string missing = lookout_.Missing();
    const std::string what = DescribeStandstill(standstill_.standing_for(), holder, activity) +
                             (missing.empty() ? "" : ". Told without it: " + missing);
    Record(recorder_, EventKind::kFailed, what);
    Log(LogLevel::kError, "watchdog", what);
  }
  if (!FindOut(look)) {
    if (const auto others = lookout_.MustSay()) Log(LogLevel::kWarn, "watchdog", *others);
  }
  if (hopeless) GiveUpHope();
  if (inquest_.busy()) return kFindsOut;
  return lookout_.asked() || lookout_.waits() ? kAskedAgain : standstill_.next();
}

void Runtime::GiveUpHope() {
  if (without_hope_.load(std::memory_order_relaxed)) return;
  const Status deaths = segment_ ? segment_->Deaths(local_rank()) : Status::Ok();
  const std::string cause = losses_->any() ? losses_->sentence() : deaths.message();
  LoseHope(Status::Unavailable(cause + " (this rank's runtime is stuck, and its tensors with it)"));
}

// The first reason counts.
void Runtime::LoseHope(Status why) {
  MutexLock lock(hope_mutex_);
  if (no_hope_.ok()) no_hope_ = std::move(why);
  lost_.store(true, std::memory_order_relaxed);
  without_hope_.store(true, std::memory_order_release);
}

Status Runtime::hopeless() const {
  MutexLock lock(hope_mutex_);
  return no_hope_;
}

Status Runtime::WaitToEnd(Work& work) {
  return Wait(work, std::chrono::nanoseconds::max()) ? work.status() : hopeless();
}

Status Runtime::WaitLooking(Work& work) {
  if (Wait(work, std::chrono::nanoseconds::max(), true)) return work.status();
  HORON_TRY(hopeless());
  return GoOn();
}

// False, and the thread is left to itself, where it does not. A program that breaks this off leaves
// the job at once.
bool Runtime::BackgroundEnds() {
  const milliseconds patience = without_hope_.load(std::memory_order_relaxed)
                                    ? kHopelessEndWait
                                    : config_.shutdown_time + kEndWait;
  const auto until = Standstill::Clock::now() + patience;
  const std::future<void> ended = ended_.get_future();
  for (auto now = until - patience; now < until; now = Standstill::Clock::now()) {
    if (ended.wait_for(UntilLook(until - now)) == std::future_status::ready) return true;
    if (GoOn().ok() || leaves_now_.exchange(true)) continue;
    bell_->Ring();
  }
  Log(LogLevel::kError, "watchdog",
      "the runtime's own thread is stuck and was left behind; end this process");
  stuck_.store(true, std::memory_order_relaxed);
  background_.detach();
  LoseHope(Status::Aborted("Horon was shut down, and its runtime is stuck with this tensor"));
  return false;
}

}  // namespace horon
