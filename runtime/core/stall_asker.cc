#include "runtime/core/stall_asker.h"

#include <algorithm>
#include <string>

namespace horon {
namespace {

using std::chrono::milliseconds;

// A rank that waits asks after a moment, then less and less often, but this often.
constexpr milliseconds kLastLook{10000};

std::string WholeSeconds(milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

}  // namespace

StallAsker::StallAsker(const Config& config, int rank)
    : rank_(rank),
      first_look_(config.stall_look),
      silent_limit_(config.stall_silence),
      busy_limit_(config.stall_shutdown) {}

bool StallAsker::Due(Time now, bool waits, const Pending& pending, const Running& running) {
  if (!waits) Rest();
  if (waits && look_at_ == Time::max()) {
    pending_mark_ = pending.newest;
    MarkRunning(now, running);
    look_after_ = first_look_;
    look_at_ = now + look_after_;
  }
  return now >= look_at_;
}

void StallAsker::MarkRunning(Time now, const Running& running) {
  running_ = running;
  running_since_ = now;
}

StallAsker::Advice StallAsker::Look(Time now, const Pending& pending, const Running& running,
                                    const Request* oldest) {
  Advice advice;
  const bool pending_waits = pending.oldest != 0 && pending.oldest <= pending_mark_;
  const bool running_waits = running.oldest != 0 && running == running_;
  if (!pending_waits) pending_mark_ = pending.newest;
  if (!running_waits) MarkRunning(now, running);
  const bool waits = pending_waits || running_waits;
  const auto longer = std::min(look_after_ + look_after_ / 2, std::max(kLastLook, first_look_));
  look_after_ = waits ? longer : first_look_;
  look_at_ = now + look_after_;
  if (!waits) return advice;
  advice.ask = true;
  if (asked_since_ == Time::max()) asked_since_ = now;
  const auto over = [](milliseconds limit, auto time) {
    return limit.count() > 0 && time >= limit;
  };
  if (rank_ != 0 && over(silent_limit_, now - asked_since_)) {
    advice.lost_coordinator = true;
    advice.status =
        Status::Unavailable("rank 0 has not answered for " + WholeSeconds(silent_limit_) +
                            ": it is stopped (SIGSTOP, a debugger), its runtime is "
                            "stuck, or its machine hangs or cannot be reached");
  } else if (running_waits && oldest != nullptr && over(busy_limit_, now - running_since_)) {
    advice.status = Status::Unavailable("the collective of tensor '" + oldest->name +
                                        "' has made no progress for " + WholeSeconds(busy_limit_) +
                                        " (HORON_STALL_SHUTDOWN_TIME_SECONDS)");
  }
  return advice;
}

}  // namespace horon
