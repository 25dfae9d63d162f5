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
#include <utility>

namespace horon {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  // The part that may pass meanwhile, of at least 1 MiB that the ranks of a node have in flight
  // (Slices::Plan); each of them sends its share.
  static constexpr int64_t kPart = 256 << 10;
  static constexpr int64_t kMeasured = 1 << 20;  // bytes of a rank over which it is taken
  static constexpr int kPatience = 4;  // after so many times as long without them it is not known
  static constexpr std::chrono::microseconds kMost{1000};  // for whom waits behind these bytes
  // With several ranks a node: a slice waits for them three times, as it is added up inside, has
  // come from the other nodes, and is gathered.
  static constexpr std::chrono::microseconds kMostOfSeveral = kMost / 3;
  // What takes longer counts as waiting: a link of less than some 20 Mbit/s is not known for long.
  static constexpr std::chrono::milliseconds kSlowest{25};

  explicit Pace(int local_size)
      : part_(kPart / local_size), most_(local_size > 1 ? kMostOfSeveral : kMost) {}

  // While bucket `number` travels; `sent`: bytes of this rank so far. The pace of the bucket before
  // holds until another is known, if that one confirmed it.
  void See(uint64_t number, int64_t sent, Clock::time_point now) {
    if (number_ != number) {
      if (!std::exchange(confirmed_, false)) of_part_ = {};
      Begin(sent, now);
    }
    number_ = number;
    const int64_t bytes = sent - sent_;
    const std::chrono::nanoseconds passed = now - since_;
    if (bytes >= kMeasured) {
      of_part_ = std::clamp<std::chrono::nanoseconds>(passed * part_ / bytes,
                                                      std::chrono::nanoseconds{1}, kSlowest);
      confirmed_ = true;
    } else if (known() ? passed < of_part_ * (kPatience * kMeasured / part_) : bytes > 0) {
      return;
    } else {
      of_part_ = {};  // a rank is late, or the network is
    }
    Begin(sent, now);
  }

  // 0: not known, or nothing travels.
  std::chrono::nanoseconds nap() const {
    return std::min<std::chrono::nanoseconds>(of_part_, most_);
  }

 private:
  bool known() const { return of_part_.count() > 0; }
  void Begin(int64_t sent, Clock::time_point now) { sent_ = sent, since_ = now; }

  const int64_t part_;
  const std::chrono::microseconds most_;
  uint64_t number_ = 0;
  bool confirmed_ = false;  // by this bucket
  int64_t sent_ = 0;
  Clock::time_point since_;
  std::chrono::nanoseconds of_part_{0};
};

}  // namespace horon
