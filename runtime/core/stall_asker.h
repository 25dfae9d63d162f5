// StallAsker: a rank's side of stalls. Knows when something here has waited long enough to ask rank
// 0 why, and when rank 0 or the transports have been silent for too long. No transport, no clock of
// its own. Fed by the negotiator, on the holder of the baton.
#pragma once

#include <chrono>

#include "runtime/base/config.h"
#include "runtime/op/request.h"

namespace horon {

class StallAsker {
 public:
  using Time = std::chrono::steady_clock::time_point;
  StallAsker(const Config& config, int rank);

  struct Advice {
    bool ask = false;  // with the next report
    Status status;     // kUnavailable: no hope
    bool lost_coordinator = false;
  };
  // Tensors that others have not submitted yet, by numbers that count up: the oldest (0: none), and
  // the newest so far, which may be done.
  struct Pending {
    uint64_t oldest = 0, newest = 0;
  };
  // Buckets in flight, numbered alike: the oldest, and how often it has gone on. The others may
  // wait for it.
  struct Running {
    uint64_t oldest = 0, moves = 0;
    bool operator==(const Running&) const = default;
  };
  // Whether it is time to look; `waits`: something is pending or in flight here. Of `pending` the
  // oldest is not read.
  bool Due(Time now, bool waits, const Pending& pending, const Running& running);
  // Whatever comes and goes meanwhile, what was there at the last look and still is waits; but not
  // a bucket that has gone on, such as a large one on a slow link. `oldest`: a tensor of the oldest
  // bucket in flight, or null.
  Advice Look(Time now, const Pending& pending, const Running& running, const Request* oldest);
  void Answered() { asked_since_ = Time::max(); }  // a decision came
  Time next_look() const { return look_at_; }      // max: none
  // Since when rank 0 owes an answer, in ms of the clock; 0: it owes none.
  int64_t unanswered_ms() const {
    if (asked_since_ == Time::max()) return 0;
    const auto since = asked_since_.time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  }

 private:
  void Rest() { look_at_ = asked_since_ = Time::max(); }
  void MarkRunning(Time now, const Running& running);

  int rank_;
  std::chrono::milliseconds first_look_, silent_limit_, busy_limit_;
  Time look_at_ = Time::max(), asked_since_ = Time::max(), running_since_;
  std::chrono::milliseconds look_after_{0};
  uint64_t pending_mark_ = 0;  // the newest at the last look that found nothing
  Running running_;            // at that look, which was at running_since_
};

}  // namespace horon
