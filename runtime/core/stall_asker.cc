#include "runtime/core/stall_asker.h"

#include <algorithm>
#include <string>

namespace horon {
namespace {

using std::chrono::milliseconds;

// A rank that waits asks after a moment, then less and less often.
constexpr milliseconds kFirstLook{500}, kLastLook{10000};

std::string Seconds(milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

}  // namespace

StallAsker::StallAsker(const Config& config, int rank)
    : rank_(rank), silent_limit_(config.stall_silence), busy_limit_(config.stall_shutdown) {}

StallAsker::Advice StallAsker::Look(Time now, bool waits, const Request* running,
                                    uint64_t progress) {
  Advice advice;
  if (!waits) Rest();
  if (!waits || (look_at_ != Time::max() && now < look_at_)) return advice;
  const bool first = look_at_ == Time::max() || progress != progress_;
  progress_ = progress;
  look_after_ = first ? kFirstLook : std::min(look_after_ + look_after_ / 2, kLastLook);
  look_at_ = now + look_after_;
  if (first) {
    still_since_ = now;
    return advice;
  }
  advice.ask = true;
  if (asked_since_ == Time::max()) asked_since_ = now;
  const auto over = [](milliseconds limit, auto time) {
    return limit.count() > 0 && time >= limit;
  };
  if (rank_ != 0 && over(silent_limit_, now - asked_since_)) {
    advice.lost_coordinator = true;
    advice.status = Status::Unavailable("rank 0 has not answered for " + Seconds(silent_limit_) +
                                        ": it is stopped (SIGSTOP, a debugger), or its machine "
                                        "hangs or cannot be reached");
  } else if (running != nullptr && over(busy_limit_, now - still_since_)) {
    advice.status = Status::Unavailable("the collective of tensor '" + running->name +
                                        "' has made no progress for " + Seconds(busy_limit_) +
                                        " (HORON_STALL_SHUTDOWN_TIME_SECONDS)");
  }
  return advice;
}

}  // namespace horon
