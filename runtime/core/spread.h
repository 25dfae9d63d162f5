// Spread: ranks of a node that has fewer cores than ranks, evenly over its cores.
//
// Ranks that yield while they wait never leave their core idle, and a kernel does not move what has
// just run: three ranks take turns on one core, and the fourth yields to nobody on the other, for
// tens of milliseconds, in which calls take up to twice as long. So each rank says where it looks
// for progress and when, and the last one of the fullest core, if that has two ranks more than
// another, goes there: it binds its thread to it, and at once takes back the cores that it had.
//
// Only while all ranks of the node look, as in a loop of small calls: else nobody knows where they
// are, and a kernel spreads what computes. And only while nobody but them wants to run on the
// machine: who computes on that core would keep it for milliseconds at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/transport/segment.h"

namespace horon {

// Where and when a rank looked last. Times are of the node's steady clock.
struct Whereabouts {
  static constexpr std::chrono::milliseconds kFresh{4};
  int core = -1;  // -1: it never did
  bool bound = false;  // to that core
  std::chrono::steady_clock::time_point at;
};

// Where rank `me` had better go, if it is the last by number that can leave the fullest core: to
// the one of `cores`, which it may use, with the fewest ranks, and of those to the next by number,
// which mostly shares a cache. Nowhere unless that has two less, nor where somebody's place is not
// known any more.
std::optional<int> BetterCore(std::span<const Whereabouts> ranks, int me,
                              std::span<const int> cores,
                              std::chrono::steady_clock::time_point now);

// Tasks that run on the machine or could, as /proc/loadavg says; none if that cannot be read.
std::optional<int> Runnable();

// Of one rank's threads that wait; holder of the baton only.
class Spread {
 public:
  static constexpr std::chrono::microseconds kEvery{500};  // that it says where it is

  // `moves` counts.
  Spread(SharedSegment& segment, int local_rank, Counter& moves)
      : segment_(segment),
        me_(local_rank),
        moves_(moves),
        ranks_(static_cast<size_t>(segment.shape().ranks)) {}
  // This thread looked, and found nothing.
  void Look(std::chrono::steady_clock::time_point now) {
    if (now >= next_) LookAround(now);
  }

 private:
  void LookAround(std::chrono::steady_clock::time_point now);

  SharedSegment& segment_;
  int me_;
  Counter& moves_;
  std::chrono::steady_clock::time_point next_, may_move_at_;
  std::vector<Whereabouts> ranks_;  // as they were at the last look
  std::vector<int> cores_;          // that this thread may use
};

}  // namespace horon
