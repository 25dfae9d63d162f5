#include "runtime/core/spread.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRest{20};  // between two moves of a rank

// A place in the segment: microseconds, whether it is bound, and the core in the lowest bits.
constexpr int kCoreBits = 13;
constexpr uint64_t kBound = uint64_t{1} << kCoreBits, kCore = kBound - 1;

uint64_t Packed(int core, bool bound, Clock::time_point at) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch());
  return static_cast<uint64_t>(us.count()) << (kCoreBits + 1) | (bound ? kBound : 0) |
         static_cast<uint64_t>(core);
}

Whereabouts Unpacked(uint64_t place) {
  if (place == 0) return {};
  const std::chrono::microseconds us(place >> (kCoreBits + 1));
  return {static_cast<int>(place & kCore), (place & kBound) != 0, Clock::time_point(us)};
}

// False, and nothing changed, where the thread may not run there.
bool GoTo(int core, const cpu_set_t& allowed) {
  cpu_set_t only, now;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  if (sched_setaffinity(0, sizeof(only), &only) != 0) return false;
  // What somebody else has set meanwhile stays.
  CPU_ZERO(&now);
  if (sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &only))
    sched_setaffinity(0, sizeof(allowed), &allowed);
  return true;
}

}  // namespace

std::optional<int> BetterCore(std::span<const Whereabouts> ranks, int me,
                              std::span<const int> cores, Clock::time_point now) {
  std::array<int, CPU_SETSIZE> on{};
  for (const Whereabouts& rank : ranks) {
    const bool known = rank.core >= 0 && rank.core < CPU_SETSIZE &&
                       std::chrono::abs(now - rank.at) <= Whereabouts::kFresh;
    if (!known) return std::nullopt;
    ++on[static_cast<size_t>(rank.core)];
  }
  const auto fullest = std::max_element(on.begin(), on.end()) - on.begin();
  int last = -1;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].core == fullest && !ranks[r].bound) last = static_cast<int>(r);
  }
  if (last != me || cores.empty()) return std::nullopt;
  const auto cost = [&](int core) {
    return std::pair(on[static_cast<size_t>(core)], std::abs(core - static_cast<int>(fullest)));
  };
  const int best = *std::min_element(cores.begin(), cores.end(),
                                     [&](int a, int b) { return cost(a) < cost(b); });
  const bool gains = on[static_cast<size_t>(fullest)] - on[static_cast<size_t>(best)] >= 2;
  return gains ? std::optional(best) : std::nullopt;
}

std::optional<int> Runnable() {
  const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::array<char, 128> text{};
  const ssize_t read_bytes = read(file, text.data(), text.size() - 1);
  close(file);
  int runnable = 0;
  if (read_bytes <= 0 || std::sscanf(text.data(), "%*s %*s %*s %d/", &runnable) != 1)
    return std::nullopt;
  return runnable;
}

void Spread::LookAround(Clock::time_point now) {
  next_ = now + kEvery;
  const int core = sched_getcpu();
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
    return;
  const bool bound = CPU_COUNT(&allowed) == 1;
  std::atomic<uint64_t>& place = segment_.rank(me_).place;
  place.store(Packed(core, bound, now), std::memory_order_relaxed);
  if (bound || now < may_move_at_) return;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const RankWords& words = segment_.rank(static_cast<int>(r));
    ranks_[r] = Unpacked(words.place.load(std::memory_order_relaxed));
  }
  cores_.clear();
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &allowed)) cores_.push_back(c);
  }
  const std::optional<int> better = BetterCore(ranks_, me_, cores_, now);
  if (!better) return;
  const std::optional<int> runnable = Runnable();
  if (!runnable || *runnable > segment_.shape().ranks) return;  // at the next look, perhaps
  if (!GoTo(*better, allowed)) return;
  place.store(Packed(*better, bound, now), std::memory_order_relaxed);
  may_move_at_ = now + kRest;
  moves_.Add();
}

}  // namespace horon
