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
  // `waits`: something is pending or in flight here. `running`: a tensor of the oldest bucket in
  // flight, or null. `progress` grows whenever anything was agreed or finished.
  Advice Look(Time now, bool waits, const Request* running, uint64_t progress);
  void Answered() { asked_since_ = Time::max(); }  // a decision came
  Time next_look() const { return look_at_; }      // max: none

 private:
  void Rest() { look_at_ = asked_since_ = Time::max(); }

  int rank_;
  std::chrono::milliseconds silent_limit_, busy_limit_;
  Time look_at_ = Time::max(), asked_since_ = Time::max(), still_since_;
  std::chrono::milliseconds look_after_{0};
  uint64_t progress_ = 0;
};

}  // namespace horon
