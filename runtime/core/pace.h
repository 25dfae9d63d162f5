// Pace: how long bytes that travel between nodes can be left to themselves, by how fast they have
// travelled lately. Holder of the baton only.
//
// MPI moves what the kernel has room for when it is called. To be called more often than a small
// part of what is in flight takes brings nothing, and costs what all ranks of a machine have too
// little of where they share cores: each call looks at everything that is under way.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace horon {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  // Of the bytes in flight (Slices::Plan) the part that may pass meanwhile.
  static constexpr int64_t kPart = 256 << 10;
  static constexpr int64_t kMeasured = 1 << 20;  // bytes over which it is taken
  static constexpr int kPatience = 4;  // after so many times as long without them it is not known
  static constexpr std::chrono::microseconds kMost{1000};  // for whom waits behind these bytes

  // While bucket `number` travels; `sent`: bytes so far. The pace of the one before holds until
  // another is known.
  void See(uint64_t number, int64_t sent, Clock::time_point now) {
    if (number_ != number) Begin(sent, now);
    number_ = number;
    const int64_t bytes = sent - sent_;
    const std::chrono::nanoseconds passed = now - since_;
    if (bytes >= kMeasured) {
      of_part_ = std::max(passed * kPart / bytes, std::chrono::nanoseconds{1});
    } else if (of_part_.count() == 0 || passed < of_part_ * (kPatience * kMeasured / kPart)) {
      return;
    } else {
      of_part_ = {};  // a rank is late, or the network is
    }
    Begin(sent, now);
  }

  // 0: not known, or nothing travels.
  std::chrono::nanoseconds nap() const {
    return std::min<std::chrono::nanoseconds>(of_part_, kMost);
  }

 private:
  void Begin(int64_t sent, Clock::time_point now) { sent_ = sent, since_ = now; }

  uint64_t number_ = 0;
  int64_t sent_ = 0;
  Clock::time_point since_;
  std::chrono::nanoseconds of_part_{0};
};

}  // namespace horon
