// PollWait: how long to sleep between two looks at what wakes nobody (MPI, a GPU), by what may come
// and for how long it has not. Holder of the baton only.
#pragma once

#include <algorithm>
#include <chrono>

namespace horon {

class PollWait {
 public:
  using Duration = std::chrono::microseconds;
  // At most, while something comes: 1 part of this long, and after that a part of how long nothing
  // has come, so that a pause between two steps, or a rank that is late, costs little of a step.
  static constexpr Duration kFirst{50}, kSoon{200}, kAwake{1000};
  struct Kind {
    int part;
    Duration most;
  };
  static constexpr Kind kIdle{8, Duration{32000}};
  static constexpr Kind kOpen{8, Duration{2000}};        // idle, with windows for others to write
  static constexpr Kind kAgreeing{16, Duration{16000}};  // others have to submit
  static constexpr Kind kBytes{32, Duration{16000}};     // are to come
  static constexpr Kind kGpu{1, kSoon};                  // is to finish

  // Something has come.
  void Moved() { wait_ = in_vain_ = Duration{0}; }
  // Before a sleep of wait().
  void BackOff(const Kind& kind) {
    in_vain_ = std::min(in_vain_ + std::max(wait_, kFirst), kind.most * kind.part);
    wait_ = std::min(kind.most, std::max(std::min(in_vain_, kSoon), in_vain_ / kind.part));
  }
  Duration wait() const { return wait_; }
  // Nothing has come for so long that it is not worth looking for it awake.
  bool long_since() const { return in_vain_ > kAwake; }

 private:
  Duration wait_{0};
  Duration in_vain_{0};  // slept since something came, as far as it counts
};

}  // namespace horon
