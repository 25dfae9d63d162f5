// Spread: ranks that share cores and wait for each other come to share them evenly.
#include "runtime/core/spread.h"

#include <sched.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
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
  ranks[3].stays = true;
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

cpu_set_t CoresOfThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
  return set;
}

cpu_set_t SetOf(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  return set;
}

void Restrict(const cpu_set_t& set) { REQUIRE(sched_setaffinity(0, sizeof(set), &set) == 0); }

// Three ranks that are this thread, on the first of two cores, of which the last one may go.
class ThreeOnACore {
 public:
  ThreeOnACore() {
    for (int core = 0; core < CPU_SETSIZE && cores_.size() < 2; ++core) {
      if (CPU_ISSET(core, &before_)) cores_.push_back(core);
    }
    for (int r = 0; r < 3; ++r) {
      ranks_.emplace_back(*segment_, r, counters_["cores.moves"], [this] {
        ++asked;
        if (meanwhile) meanwhile();
        return runnable;
      });
    }
  }
  ~ThreeOnACore() { sched_setaffinity(0, sizeof(before_), &before_); }
  ThreeOnACore(const ThreeOnACore&) = delete;
  ThreeOnACore& operator=(const ThreeOnACore&) = delete;

  bool possible() const {
    if (cores_.size() < 2) WARN("not checked: this process may use one core only");
    return cores_.size() == 2;
  }
  // All look on the first core. Then the last one, which may use both, looks in time.
  void Look(Clock::time_point now) {
    do {  // the kernel moves threads, too
      Restrict(SetOf({cores_[0]}));
      for (Spread& rank : ranks_) rank.Look(now);
      Restrict(both());
    } while (sched_getcpu() != cores_[0]);
    ranks_.back().Look(now + Spread::kEvery);
  }
  int64_t moves() { return counters_["cores.moves"].value(); }
  Spread& last() { return ranks_.back(); }
  cpu_set_t both() const { return SetOf(cores_); }
  int first() const { return cores_[0]; }
  int second() const { return cores_[1]; }

  std::optional<int> runnable = 1;
  std::function<void()> meanwhile;  // when it is asked who wants to run
  int asked = 0;

 private:
  const cpu_set_t before_ = CoresOfThread();
  std::vector<int> cores_;
  std::shared_ptr<SharedSegment> segment_ =
      SharedSegment::InProcess(SegmentShape::For(3, 1 << 12, 1 << 12)).value();
  Counters counters_;
  std::vector<Spread> ranks_;
};

TEST_CASE("a thread that shares its core goes to the other, and may use both afterwards") {
  ThreeOnACore three;
  if (!three.possible()) return;
  bool moved = false;
  for (int attempt = 0; attempt < 20 && !moved; ++attempt) {  // it may have been moved back
    const int64_t before = three.moves();
    three.Look(kNow + attempt * milliseconds(50));
    moved = three.moves() == before + 1 && sched_getcpu() == three.second();
    const cpu_set_t after = CoresOfThread(), both = three.both();
    CHECK(CPU_EQUAL(&after, &both));
  }
  CHECK(moved);
}

TEST_CASE("a rank that has gone rests, and so for less does one that others kept from going") {
  ThreeOnACore three;
  if (!three.possible()) return;
  three.Look(kNow);
  REQUIRE(three.moves() == 1);
  three.Look(kNow + Spread::kRest - milliseconds(1));
  CHECK(three.asked == 1);
  const Clock::time_point rested = kNow + Spread::kRest + milliseconds(1);
  three.runnable = 4;
  three.Look(rested);
  CHECK(three.asked == 2);
  three.runnable = std::nullopt;  // /proc cannot be read
  three.Look(rested + Spread::kRetry - milliseconds(1));
  CHECK(three.asked == 2);
  three.Look(rested + Spread::kRetry + milliseconds(1));
  CHECK(three.asked == 3);
  CHECK(three.moves() == 1);
  three.runnable = 3;
  three.Look(rested + 3 * Spread::kRetry);
  CHECK(three.moves() == 2);
}

TEST_CASE("a rank knows for how long it is not alone on its core") {
  ThreeOnACore three;
  if (!three.possible()) return;
  three.runnable = 4;  // nobody goes
  three.Look(kNow);
  CHECK(three.last().shares(kNow + Whereabouts::kFresh - milliseconds(1)));
  CHECK(!three.last().shares(kNow + Whereabouts::kFresh));  // the others have not looked since
  const Clock::time_point later = kNow + 2 * Whereabouts::kFresh;
  three.last().Look(later);
  CHECK(!three.last().shares(later));
  three.runnable = 3;
  three.Look(later + Whereabouts::kFresh);
  CHECK(three.moves() == 1);
  CHECK(!three.last().shares(later + Whereabouts::kFresh));
}

TEST_CASE("who wakes another rank says where it is, and that it stays") {
  auto made = SharedSegment::InProcess(SegmentShape::For(2, 1 << 12, 1 << 12));
  REQUIRE(made.ok());
  SharedSegment& segment = *made.value();
  segment.Ring(1, 0, Doorbell::kLender);
  CHECK(Whereabouts::Of(segment.rank(0).place).core == -1);  // nobody slept
  segment.rank(1).bell.Announce(Doorbell::kBackground);
  segment.Ring(1, 0, Doorbell::kLender);
  CHECK(Whereabouts::Of(segment.rank(0).place).core == -1);  // it was not for that one
  segment.rank(1).bell.Announce(Doorbell::kLender);
  const Clock::time_point now = Clock::now();
  CHECK(segment.Ring(1, 0, Doorbell::kLender) == Doorbell::kLender);
  const Whereabouts there = Whereabouts::Of(segment.rank(0).place);
  CHECK(there.core >= 0);
  CHECK(there.stays);
  CHECK(there.at >= std::chrono::floor<std::chrono::microseconds>(now));
  CHECK(Whereabouts::Of(segment.rank(1).place).core == -1);
}

TEST_CASE("cores that somebody gives the thread meanwhile stay") {
  ThreeOnACore three;
  if (!three.possible()) return;
  const cpu_set_t given = SetOf({three.first()});
  three.meanwhile = [&] { Restrict(given); };
  three.Look(kNow);
  const cpu_set_t after = CoresOfThread();
  CHECK(three.asked == 1);
  CHECK(CPU_EQUAL(&after, &given));
  CHECK(three.moves() == 0);
}

}  // namespace
}  // namespace horon
