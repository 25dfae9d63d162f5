// Spread: ranks of a node that wait for each other, evenly over its cores.
//
// More ranks than cores: who waits yields, so that no core is ever idle, and a kernel does not move
// what has just run. Three ranks take turns on one core, and the fourth yields to nobody on the
// other, for tens of milliseconds, in which calls take up to twice as long. With a core for each
// it is two ranks on one: the first waits until it sleeps, the second then has all that it needs
// and wakes the first; only one of them ever wants to run, so the kernel sees nothing amiss, and a
// call takes twenty times as long.
//
// So who looks for progress in vain says where and when, and who wakes another rank says where it
// is; the last rank that waits on the fullest core, if that has two ranks more than another, goes
// there: it binds its thread to it, and at once takes back the cores that it had. Linux then takes
// them for those that were asked for, unless they are all that there are.
//
// Only while the places of all ranks of the node are known, as in a loop of small calls: a kernel
// spreads what computes. And only while nobody but them wants to run on the machine: who computes
// on that core would keep it for milliseconds at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/transport/segment.h"
#include "runtime/transport/whereabouts.h"

namespace horon {

// Where rank `me` had better go, if it is the last by number of those on the fullest core (the
// first of the fullest) that do not stay: to the one of `cores`, which it may use, with the
// fewest ranks, and of those to the next by number, which mostly shares a cache. Nowhere unless
// that has two less, nor where somebody's place is not known any more.
std::optional<int> BetterCore(std::span<const Whereabouts> ranks, int me,
                              std::span<const int> cores,
                              std::chrono::steady_clock::time_point now);

// Tasks that run on the machine or could, as /proc/loadavg says; none if that cannot be read.
std::optional<int> Runnable();

// Of one rank's threads that wait; holder of the baton only.
class Spread {
 public:
  static constexpr std::chrono::microseconds kEvery{500};  // that it says where it is
  static constexpr std::chrono::milliseconds kRest{20};    // between two of its moves
  static constexpr std::chrono::milliseconds kRetry{2};    // after an attempt that came to nothing

  // `moves` counts.
  Spread(SharedSegment& segment, int local_rank, Counter& moves,
         std::function<std::optional<int>()> runnable = Runnable)
      : segment_(segment),
        me_(local_rank),
        moves_(moves),
        runnable_(std::move(runnable)),
        ranks_(static_cast<size_t>(segment.shape().ranks)) {}
  // This thread looked, and found nothing.
  void Look(std::chrono::steady_clock::time_point now) {
    if (now >= next_) LookAround(now);
  }
  // Whether another rank was on this one's core lately: then it had better yield.
  bool shares(std::chrono::steady_clock::time_point now) const { return now < shares_until_; }

 private:
  void LookAround(std::chrono::steady_clock::time_point now);

  SharedSegment& segment_;
  int me_;
  Counter& moves_;
  std::function<std::optional<int>()> runnable_;
  std::chrono::steady_clock::time_point next_, next_of_all_, may_move_at_, shares_until_;
  std::vector<Whereabouts> ranks_;  // as they were at the last look
  std::vector<int> cores_;          // that this thread may use
};

}  // namespace horon
