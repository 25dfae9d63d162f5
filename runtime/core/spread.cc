#include "runtime/core/spread.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
// Between two looks at all ranks, for each of them: its line takes some 0.1 us where it is far.
constexpr std::chrono::microseconds kEachRank{25};

bool CoresOf(cpu_set_t* cores) {
  CPU_ZERO(cores);
  return sched_getaffinity(0, sizeof(*cores), cores) == 0;
}

// False, and nothing changed, where the thread may not run there, or somebody has set other cores
// than `allowed` meanwhile.
bool GoTo(int core, const cpu_set_t& allowed) {
  cpu_set_t only, all, now;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  if (!CoresOf(&now) || !CPU_EQUAL(&now, &allowed)) return false;
  if (sched_setaffinity(0, sizeof(only), &only) != 0) return false;
  if (!CoresOf(&now) || !CPU_EQUAL(&now, &only)) return true;  // somebody again: that stays
  // Who asks for all gets those of its container, also when it is given others later.
  std::memset(&all, 0xff, sizeof(all));
  sched_setaffinity(0, sizeof(all), &all);
  if (CoresOf(&now) && !CPU_EQUAL(&now, &allowed))
    sched_setaffinity(0, sizeof(allowed), &allowed);
  return true;
}

}  // namespace

std::optional<int> BetterCore(std::span<const Whereabouts> ranks, int me,
                              std::span<const int> cores, Clock::time_point now) {
  std::array<int, CPU_SETSIZE> on{};
  for (const Whereabouts& rank : ranks) {
    if (!rank.fresh(now)) return std::nullopt;
    ++on[static_cast<size_t>(rank.core)];
  }
  const auto fullest = std::max_element(on.begin(), on.end()) - on.begin();
  int last = -1;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].core == fullest && !ranks[r].stays) last = static_cast<int>(r);
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
  cpu_set_t allowed;
  if (!CoresOf(&allowed)) return;
  const bool bound = CPU_COUNT(&allowed) == 1;
  const Whereabouts here = Whereabouts::Here(bound, now);
  std::atomic<uint64_t>& place = segment_.rank(me_).place;
  place.store(here.Packed(), std::memory_order_relaxed);
  if (now < next_of_all_) return;
  next_of_all_ = now + std::max(kEvery, kEachRank * static_cast<int>(ranks_.size()));
  shares_until_ = {};
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const RankWords& words = segment_.rank(static_cast<int>(r));
    ranks_[r] = Whereabouts::Of(words.place.load(std::memory_order_relaxed));
    const bool other = static_cast<int>(r) != me_ && ranks_[r].fresh(now);
    if (other && ranks_[r].core == here.core)
      shares_until_ = std::max(shares_until_, ranks_[r].at + Whereabouts::kFresh);
  }
  if (bound || !shares(now) || now < may_move_at_) return;
  cores_.clear();
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &allowed)) cores_.push_back(c);
  }
  const std::optional<int> better = BetterCore(ranks_, me_, cores_, now);
  if (!better) return;
  may_move_at_ = now + kRetry;
  const std::optional<int> runnable = runnable_();
  if (!runnable || *runnable > segment_.shape().ranks || !GoTo(*better, allowed)) return;
  may_move_at_ = now + kRest;
  shares_until_ = {};
  place.store(Whereabouts{*better, bound, now}.Packed(), std::memory_order_relaxed);
  moves_.Add();
}

}  // namespace horon
