// Spread: ranks that share cores and wait for each other come to share them evenly.
#include "runtime/core/spread.h"

#include <sched.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "test/support/catch.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const Clock::time_point kNow = Clock::now();

std::vector<Whereabouts> On(const std::vector<int>& cores) {
  std::vector<Whereabouts> ranks;
  for (int core : cores) ranks.push_back({core, false, kNow});
  return ranks;
}

std::vector<int> FirstCores(int count) {
  std::vector<int> cores(static_cast<size_t>(count));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

// Ranks on the fullest core, less those on the emptiest.
int Unevenness(const std::vector<Whereabouts>& ranks, int cores) {
  std::map<int, int> on;
  for (int core = 0; core < cores; ++core) on[core] = 0;
  for (const Whereabouts& rank : ranks) ++on[rank.core];
  const auto [least, most] = std::minmax_element(
      on.begin(), on.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most->second - least->second;
}

TEST_CASE("of three ranks on one core the last one goes to the core with one") {
  const std::vector<int> cores = FirstCores(2);
  const auto ranks = On({1, 0, 1, 1});
  CHECK(BetterCore(ranks, 3, cores, kNow) == 0);
  for (int other : {0, 1, 2}) CHECK(!BetterCore(ranks, other, cores, kNow));
}

TEST_CASE("even ranks stay, and so does an odd one") {
  for (const auto& where : {On({0, 0, 1, 1}), On({0, 1, 0}), On({1, 1, 0}), On({0, 1})}) {
    for (int rank = 0; rank < static_cast<int>(where.size()); ++rank)
      CHECK(!BetterCore(where, rank, FirstCores(2), kNow));
  }
}

TEST_CASE("nobody goes while a rank computes, or was never seen") {
  auto ranks = On({1, 0, 1, 1});
  ranks[0].at = kNow - Whereabouts::kFresh - milliseconds(1);
  CHECK(!BetterCore(ranks, 3, FirstCores(2), kNow));
  ranks[0].at = kNow - Whereabouts::kFresh;
  CHECK(BetterCore(ranks, 3, FirstCores(2), kNow) == 0);
  ranks[0] = {};
  CHECK(!BetterCore(ranks, 3, FirstCores(2), kNow));
}

TEST_CASE("a rank goes where it may, and among equals to the nearest") {
  CHECK(!BetterCore(On({3, 3, 3, 3}), 3, std::vector{3}, kNow));
  CHECK(BetterCore(On({3, 3, 3, 3}), 3, std::vector{3, 7}, kNow) == 7);
  CHECK(BetterCore(On({3, 3, 3, 3}), 3, FirstCores(16), kNow) == 2);
  CHECK(BetterCore(On({3, 3, 3, 2}), 2, FirstCores(5), kNow) == 4);
}

TEST_CASE("only the last of the fullest core goes, so that not all go to one") {
  const auto ranks = On({0, 0, 0, 0, 1, 1, 2, 2});  // nobody on core 3
  CHECK(BetterCore(ranks, 3, FirstCores(4), kNow) == 3);
  for (int other : {0, 1, 2, 4, 5, 6, 7}) CHECK(!BetterCore(ranks, other, FirstCores(4), kNow));
}

TEST_CASE("a bound rank leaves it to the last that is not") {
  auto ranks = On({1, 0, 1, 1});
  ranks[3].bound = true;
  CHECK(!BetterCore(ranks, 3, FirstCores(2), kNow));
  CHECK(BetterCore(ranks, 2, FirstCores(2), kNow) == 0);
}

TEST_CASE("a clock that is not this one's is not believed") {
  auto ranks = On({1, 0, 1, 1});
  ranks[0].at = kNow + Whereabouts::kFresh + milliseconds(1);
  CHECK(!BetterCore(ranks, 3, FirstCores(2), kNow));
}

TEST_CASE("ranks that begin anywhere are even after as few moves as can be, and stay") {
  std::mt19937 random(1);
  const auto below = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (int round = 0; round < 300; ++round) {
    const int cores = 1 + below(8), count = cores + 1 + below(24);
    std::vector<int> where;
    for (int r = 0; r < count; ++r) where.push_back(below(cores));
    auto ranks = On(where);
    int too_many = 0;  // on cores that have more than they will have
    for (int core : FirstCores(cores)) {
      const auto on = static_cast<int>(std::count(where.begin(), where.end(), core));
      too_many += std::max(0, on - (count + cores - 1) / cores);
    }
    int moves = 0;
    for (int turn = 0; turn < 100 * count; ++turn) {  // whoever looks next
      const int me = below(count);
      const auto better = BetterCore(ranks, me, FirstCores(cores), kNow);
      if (!better) continue;
      ranks[static_cast<size_t>(me)].core = *better;
      ++moves;
    }
    INFO(count << " ranks on " << cores << " cores");
    CHECK(Unevenness(ranks, cores) <= 1);
    CHECK(moves >= too_many);
    CHECK(moves <= too_many + cores);  // and those that fill a core which has too few
  }
}

TEST_CASE("this thread is one of those that run") {
  const auto runnable = Runnable();
  REQUIRE(runnable);
  CHECK(*runnable >= 1);
}

// Of those that the thread may use.
std::vector<int> TwoCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

TEST_CASE("a thread that shares its core goes to the other, and may use both afterwards") {
  const std::vector<int> cores = TwoCores();
  if (cores.size() < 2) {
    WARN("not checked: this process may use one core only");
    return;
  }
  cpu_set_t before, one, after;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  CPU_ZERO(&one);
  CPU_SET(cores[0], &one);
  // As many ranks as tasks that may run beside this one: then they are taken for the ranks.
  const int count = 64;
  auto made = SharedSegment::InProcess(SegmentShape::For(count, 1 << 12, 1 << 12));
  REQUIRE(made.ok());
  SharedSegment& segment = *made.value();
  Counters counters;
  Counter& moves = counters["cores.moves"];
  std::vector<Spread> ranks;
  for (int r = 0; r < count; ++r) ranks.emplace_back(segment, r, moves);
  Spread& last = ranks.back();
  bool moved = false;
  for (int attempt = 0; attempt < 20 && !moved; ++attempt) {  // the kernel moves threads, too
    const auto now = Clock::now() + attempt * milliseconds(50);  // it rests after a move
    const int64_t moves_before = moves.value();
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);  // now it is there, and bound
    for (Spread& rank : ranks) rank.Look(now);
    REQUIRE(moves.value() == moves_before);
    REQUIRE(sched_setaffinity(0, sizeof(before), &before) == 0);
    last.Look(now + Spread::kEvery);
    moved = moves.value() == moves_before + 1 && sched_getcpu() == cores[1];
  }
  REQUIRE(sched_getaffinity(0, sizeof(after), &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
  CHECK(moved);
}

}  // namespace
}  // namespace horon
