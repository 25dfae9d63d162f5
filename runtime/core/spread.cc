#include "runtime/core/spread.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRest{20};  // after a move, for the others to be seen anew

// A place in the segment: microseconds, and the core in the lowest bits.
constexpr int kCoreBits = 14;
constexpr uint64_t kCoreMask = (1 << kCoreBits) - 1;

uint64_t Packed(int core, Clock::time_point at) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch());
  return static_cast<uint64_t>(us.count()) << kCoreBits | static_cast<uint64_t>(core);
}

Whereabouts Unpacked(uint64_t place) {
  if (place == 0) return {};
  const std::chrono::microseconds us(place >> kCoreBits);
  return {static_cast<int>(place & kCoreMask), Clock::time_point(us)};
}

}  // namespace

std::optional<int> BetterCore(std::span<const Whereabouts> ranks, int me,
                              std::span<const int> cores, Clock::time_point now) {
  const auto on = [&](int core) {
    return std::count_if(ranks.begin(), ranks.end(),
                         [&](const Whereabouts& rank) { return rank.core == core; });
  };
  const int mine = ranks[static_cast<size_t>(me)].core;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const Whereabouts& where = ranks[static_cast<size_t>(rank)];
    if (where.core < 0 || now - where.at > Whereabouts::kFresh) return std::nullopt;
    if (where.core == mine && rank > me) return std::nullopt;
  }
  if (cores.empty()) return std::nullopt;
  const auto cost = [&](int core) { return std::pair(on(core), std::abs(core - mine)); };
  const int best = *std::min_element(cores.begin(), cores.end(),
                                     [&](int a, int b) { return cost(a) < cost(b); });
  return on(mine) - on(best) >= 2 ? std::optional(best) : std::nullopt;
}

void Spread::LookAround(Clock::time_point now) {
  next_ = now + kEvery;
  const int core = sched_getcpu();
  if (core < 0 || core > static_cast<int>(kCoreMask)) return;
  segment_.rank(me_).place.store(Packed(core, now), std::memory_order_relaxed);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const RankWords& words = segment_.rank(static_cast<int>(r));
    ranks_[r] = Unpacked(words.place.load(std::memory_order_relaxed));
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cores_.clear();
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &allowed)) cores_.push_back(c);
  }
  const std::optional<int> better = BetterCore(ranks_, me_, cores_, now);
  if (!better) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(*better, &only);
  if (sched_setaffinity(0, sizeof(only), &only) != 0) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);
  next_ = now + kRest;
  moves_.Add();
}

}  // namespace horon
