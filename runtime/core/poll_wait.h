// PollWait: how long to sleep between two looks at what wakes nobody (MPI, a GPU), by what may come
// and for how long it has not. Holder of the baton only.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace horon {

class PollWait {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::microseconds;
  // At most, while something comes; after that a part of how long nothing has, so that a pause
  // between two steps, or a rank that is late, costs little of a step.
  static constexpr Duration kSoon{200};
  static constexpr Duration kAwake{2000};  // then nobody looks for it awake between two sleeps
  struct Kind {
    int part;
    Duration most;
  };
  static constexpr Kind kIdle{8, Duration{32000}};
  static constexpr Kind kAgreeing{16, Duration{16000}};  // others have to submit
  static constexpr Kind kBytes{32, Duration{16000}};     // are to come
  static constexpr Kind kGpu{1, kSoon};                  // is to finish
  static constexpr Duration kMostOpen{2000};  // of any kind, with windows for others to write

  // Something has come.
  void Moved() {
    since_.reset();
    wait_ = in_vain_ = Duration{0};
  }
  // Before a sleep of wait().
  void BackOff(const Kind& kind, bool open, Clock::time_point now) {
    if (!since_) since_ = now;
    in_vain_ = std::chrono::duration_cast<Duration>(now - *since_);
    const Duration most = open ? std::min(kind.most, kMostOpen) : kind.most;
    wait_ = std::min(most, std::max(std::min(in_vain_, kSoon), in_vain_ / kind.part));
  }
  Duration wait() const { return wait_; }
  bool awake() const { return in_vain_ <= kAwake; }

 private:
  std::optional<Clock::time_point> since_;  // the first sleep in vain
  Duration in_vain_{0}, wait_{0};
};

}  // namespace horon
