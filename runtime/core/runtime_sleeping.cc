// When a runtime with nothing to do goes to sleep, and for how long at most.
#include <sched.h>

#include <algorithm>

#include "runtime/core/runtime.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLeaveSleep{20};
// With more ranks than cores, whom one waits for may need this core, and between nodes who moves
// the network's bytes: a look costs a yield, which hands it over in a third of a microsecond where
// waking a sleeper takes 20, and takes as long as the others run.
constexpr int kYieldFactor = 4;
constexpr int64_t kLongBucket = 4 << 20;  // bytes: waiting for a part of it awake has to pay
// The background thread's, while a blocking call has the baton, so that a user in a loop of them
// need not wake it. While such a call sleeps they become longer.
constexpr std::chrono::milliseconds kNap{2};
constexpr std::chrono::nanoseconds kLongestNap = std::chrono::milliseconds{32};
constexpr std::chrono::microseconds kGpuPollWait{20};
constexpr std::chrono::nanoseconds kUntilGiven = std::chrono::microseconds{50};  // by who returns

}  // namespace

bool Runtime::MuchTravels() const {
  return fabric_.topology.nodes() > 1 && executor_.oldest_bytes() > kLongBucket;
}

// Bytes take longer than a blocking call looks for them.
bool Runtime::Naps() const { return MuchTravels() && pace_.nap() > config_.spin; }

// Looks for work for a short while before sleeping, if something is under way. While much travels
// between nodes not where it Naps, nor where that has brought nothing lately; nor for what has not
// come for long.
bool Runtime::LookAgain(std::chrono::microseconds spin) {
  if (executor_.idle() && negotiator_.idle() && peers_.idle()) return false;
  const auto start = Clock::now();
  const bool is_long = MuchTravels();
  if (is_long) {
    pace_.See(executor_.oldest_number(), sent_over_mpi_.value(), start);
    if (Naps() || !long_spin_.Due()) return false;
  }
  if (!poll_wait_.awake() && !executor_.waits_for_gpu()) return false;
  const auto until = start + (yields_ ? spin * kYieldFactor : spin);
  bool moved = false;
  auto now = start;
  do {
    moved = CycleMoved();
    if (moved) break;
    if (yields_ || (hurry_ && spread_ && spread_->shares(now))) sched_yield();
    now = Clock::now();
    if (hurry_ && spread_) spread_->Look(now);
  } while (now < until);
  if (is_long) long_spin_.Learn(moved && Clock::now() - start <= spin);
  return moved;
}

// Tensors of a GPU come one by one in a backward pass, some 100 us apart, and what there is to do
// with one takes less than waking a thread. Where each rank has two cores the background thread
// goes on looking for the next one for a while; with the baton, which it gives to who wants it.
bool Runtime::LookForMore() {
  if (!cores_to_spare_) return false;
  const auto until = popped_of_gpu_at_ + kMoreSpins * config_.spin;
  while (Clock::now() < until && !baton_.wanted() && !leaving_.load(std::memory_order_relaxed)) {
    if (CycleMoved()) return true;
  }
  return false;
}

void Runtime::BackOff() {
  const bool gpu = executor_.waits_for_gpu();
  if (!polls_ && !gpu) return;
  const PollWait::Kind& kind = gpu                                   ? PollWait::kGpu
                               : !executor_.idle() || !peers_.idle() ? PollWait::kBytes
                               : !negotiator_.idle()                 ? PollWait::kAgreeing
                                                                     : PollWait::kIdle;
  poll_wait_.BackOff(kind, peers_.open(), Clock::now());
}

std::chrono::nanoseconds Runtime::SleepLimit() const {
  std::chrono::nanoseconds limit = OwnSleepLimit();
  const bool failed = !failure_.ok();
  if ((!failed && !suspicion_.ok()) || fabric_.topology.size() == 1) return limit;
  const std::chrono::nanoseconds wait =
      Naps() ? std::max<std::chrono::nanoseconds>(poll_wait_.wait(), pace_.nap())
             : poll_wait_.wait();
  for (const auto& transport : transports_) {
    if (transport->poll_interval().count() > 0 && (!failed || peers_.Hears(*transport)))
      limit = std::min<std::chrono::nanoseconds>(
          limit, std::max<std::chrono::nanoseconds>(wait, transport->poll_interval()));
  }
  return limit;
}

// Without the looks at transports that wake nobody.
std::chrono::nanoseconds Runtime::OwnSleepLimit() const {
  std::chrono::nanoseconds limit = kIdleSleep;
  if (told_to_leave_) limit = kLeaveSleep;
  if (const auto next = peers_.next_look(); next != Clock::time_point::max()) {
    limit = std::clamp<std::chrono::nanoseconds>(next - Clock::now(), std::chrono::microseconds{1},
                                                 limit);
  }
  if (!failure_.ok()) return limit;
  if (!suspicion_.ok())
    return std::clamp<std::chrono::nanoseconds>(judge_at_ - Clock::now(),
                                                std::chrono::microseconds{1}, limit);
  if (hold_until_) {
    limit = std::clamp<std::chrono::nanoseconds>(*hold_until_ - Clock::now(),
                                                 std::chrono::microseconds{1}, limit);
  }
  const auto next_look = negotiator_.next_look(hurry_);
  if (next_look != Clock::time_point::max()) {
    limit = std::clamp<std::chrono::nanoseconds>(next_look - Clock::now(),
                                                 std::chrono::microseconds{1}, limit);
  }
  if (executor_.waits_for_gpu())
    limit = std::min<std::chrono::nanoseconds>(limit, std::max(poll_wait_.wait(), kGpuPollWait));
  return limit;
}

// Whether a lender that returns has to. Not for MPI alone, if nothing is under way here and the
// background thread looks soon by itself: it would need a core, and have the baton, just when a
// user in a loop of blocking calls is back.
bool Runtime::MustWakeBackground() const {
  if (OwnSleepLimit() < kIdleSleep) return true;
  if (SleepLimit() == kIdleSleep) return false;
  const bool idle = executor_.idle() && negotiator_.idle() && peers_.idle() && !peers_.open();
  if (!idle) return true;
  // Past: it has just woken, and may be about to sleep for longer.
  const auto soon = background_looks_.load(std::memory_order_relaxed) - Clock::now();
  return soon > kNap || soon.count() < 0;
}

// Sleeps as the background thread, which gives the baton back meanwhile. Woken while a lender runs
// the cycle it goes on sleeping: that one wakes it if it has to. But not for long if it was rung
// for and is still announced: then the lender has just come, or is about to return and may have
// looked before.
void Runtime::SleepWithoutBaton(uint32_t ticket) {
  const std::chrono::nanoseconds limit = SleepLimit();
  const std::chrono::nanoseconds first = limit < kIdleSleep ? kNap : limit;
  std::chrono::nanoseconds nap = first;
  BackOff();
  FlushRings();
  {
    const Awaiting awaiting(*this);
    background_looks_.store(Clock::now() + limit, std::memory_order_relaxed);
    baton_.Give();
    bell_->Sleep(ticket, Doorbell::kAnyBackground, limit);
  }
  for (uint32_t heard = ticket;;) {
    ticket = bell_->ticket();
    if (baton_.TryTake()) break;
    const uint32_t sleeper = bell_->sleeper();
    if ((sleeper & Doorbell::kAnyBackground) == 0) heard = ticket;
    nap = sleeper == Doorbell::kLender ? std::max(first, std::min(2 * nap, kLongestNap)) : first;
    const auto most = ticket == heard ? nap : kUntilGiven;
    background_looks_.store(Clock::now() + most, std::memory_order_relaxed);
    bell_->Sleep(ticket, Doorbell::kAnyBackground, most);
  }
  bell_->Awake();
}

void Runtime::FlushRings() {
  for (const auto& transport : transports_) transport->Flush();
}

uint32_t Runtime::Sleeper() const {
  return executor_.idle() ? Doorbell::kIdle : Doorbell::kBackground;
}

}  // namespace horon
