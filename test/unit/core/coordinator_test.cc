// Decisions without transports: the coordinator is fed by hand.
#include "test/support/coordinator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>

namespace horon {
namespace {

using test::HandFed;
using test::Named;
using test::Names;
using test::Of;

TEST_CASE("a name is agreed when the last rank reports it, in the order of completion") {
  HandFed f(3);
  f.Hear(0, Of({Named("a"), Named("b")}));
  f.Hear(1, Of({Named("b"), Named("a")}));
  CHECK_FALSE(f.coordinator.HasNews());
  f.Hear(2, Of({Named("b")}));
  CHECK(Names(f.coordinator.Decide()) == std::vector<std::string>{"b"});
  f.Hear(2, Of({Named("a")}));
  const Decision second = f.coordinator.Decide();
  CHECK(Names(second) == std::vector<std::string>{"a"});
  CHECK(second.sequence == 2);
  CHECK(f.coordinator.Decide().verdicts.empty());
}

TEST_CASE("what is pending names the ranks that miss it") {
  HandFed f(4);
  f.Hear(1, Of({Named("a")}));
  f.Hear(2, Of({Named("a")}));
  const auto pending = f.coordinator.Pending();
  REQUIRE(pending.size() == 1);
  CHECK(pending[0].key == "0/a");
  CHECK(pending[0].missing == std::vector<int>{0, 3});
}

TEST_CASE("a remembered agreement is repeated by its id alone") {
  HandFed f(2);
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("a")}));
  const uint64_t id = f.coordinator.Decide().verdicts.at(0).cache_id;
  REQUIRE(id != 0);
  Report bit;
  bit.heard = 1;
  bit.bits = {id};
  for (int r = 0; r < 2; ++r) f.Hear(r, bit);
  const Decision decision = f.coordinator.Decide();
  CHECK(decision.verdicts.empty());
  CHECK(decision.order == CacheIds{id});
  CHECK(f.coordinator.Pending().empty());
}

TEST_CASE("a bit against a changed request is a disagreement, not a hit") {
  HandFed f(2);
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("a")}));
  Report bit;
  bit.bits = {f.coordinator.Decide().verdicts.at(0).cache_id};
  f.Hear(0, bit);
  f.Hear(1, Of({Named("a", 5)}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 2);  // one for each rank
  for (const Verdict& v : decision.verdicts) {
    CHECK(v.status.code() == Code::kInvalidArgument);
    CHECK(v.status.message().find("[5]") != std::string::npos);
  }
}

TEST_CASE("an id that never was is the rank's fault and ends the runtime") {
  HandFed f(2);
  Report bit;
  bit.bits = {77};
  CHECK(f.coordinator.Hear(1, bit).code() == Code::kInternal);
}

TEST_CASE("an evicted id is understood until every rank has heard of the eviction") {
  HandFed f(2, 1);
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("a")}));
  const uint64_t a = f.coordinator.Decide().verdicts.at(0).cache_id;
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("b")}));
  CHECK(f.coordinator.Decide().evicted == CacheIds{a});
  Report late;  // rank 1 has heard decision 1 only
  late.heard = 1;
  late.bits = {a};
  f.Hear(1, late);
  Report told = Of({Named("a")});
  told.heard = 2;
  f.Hear(0, told);
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 1);
  CHECK(decision.verdicts[0].status.ok());
  CHECK(decision.verdicts[0].name == "a");  // by name: rank 0 has forgotten the id
}

TEST_CASE("a rank that comes late to a failure gets the same sentence, once") {
  HandFed f(3);
  Request a = Named("a"), b = Named("b");
  for (Request* r : {&a, &b}) r->group = "g", r->group_size = 2, r->group_hash = 1;
  Request other = a;
  other.group_hash = 2;  // other members
  f.Hear(0, Of({a, b}));
  f.Hear(1, Of({other}));
  const Decision failed = f.coordinator.Decide();
  std::set<int> told;
  for (const Verdict& v : failed.verdicts) {
    CHECK_FALSE(v.status.ok());
    told.insert(v.only_rank);
  }
  CHECK(told == std::set<int>{0, 1});
  f.Hear(2, Of({a, b}));
  const Decision late = f.coordinator.Decide();
  REQUIRE(late.verdicts.size() == 2);
  for (const Verdict& v : late.verdicts) {
    CHECK(v.only_rank == 2);
    CHECK(v.status.message() == failed.verdicts[0].status.message());
  }
  for (int r = 0; r < 3; ++r) f.Hear(r, Of({a, b}));  // the next step is a new one
  const Decision next = f.coordinator.Decide();
  REQUIRE(next.verdicts.size() == 2);
  for (const Verdict& v : next.verdicts) CHECK(v.status.ok());
}

TEST_CASE("a group runs when all its members are ready, its members together") {
  HandFed f(2);
  std::vector<Request> group;
  for (int i = 0; i < 3; ++i) {
    group.push_back(Named("g" + std::to_string(i)));
    group.back().group = "g";
    group.back().group_size = 3;
    group.back().group_hash = 9;
  }
  f.Hear(0, Of(group));
  f.Hear(0, Of({Named("x")}));
  f.Hear(1, Of({Named("x")}));
  CHECK(Names(f.coordinator.Decide()) == std::vector<std::string>{"x"});
  f.Hear(1, Of(group));
  CHECK(Names(f.coordinator.Decide()) == std::vector<std::string>{"g0", "g1", "g2"});
}

TEST_CASE("a rank that leaves fails what needs it, now and later; the last to owe is forgotten") {
  HandFed f(3);
  f.Hear(0, Of({Named("a")}));
  Report bye;
  bye.leaving = true;
  f.Hear(2, bye);
  const Decision decision = f.coordinator.Decide();
  CHECK(decision.left == std::vector<int32_t>{2});
  REQUIRE(decision.verdicts.size() == 1);
  CHECK(decision.verdicts[0].only_rank == 0);
  CHECK(decision.verdicts[0].status.code() == Code::kAborted);
  f.Hear(1, Of({Named("a")}));
  const Decision late = f.coordinator.Decide();
  REQUIRE(late.verdicts.size() == 1);
  CHECK(late.verdicts[0].only_rank == 1);
  CHECK(late.verdicts[0].status.message().find("rank 2") != std::string::npos);
}

// A rank as the coordinator knows it: remembers what was agreed when it hears a decision, and
// reports by cache id what it remembers.
struct FarRank {
  std::map<std::string, std::pair<uint64_t, Request>> remembered;
  std::map<std::string, Request> pending;  // submitted, no verdict yet
  std::map<uint64_t, std::string> name_of;
  uint64_t heard = 0;
  int done = 0, failed = 0;

  Report Submit(std::vector<Request> requests) {
    Report report;
    report.heard = heard;
    for (Request& request : requests) {
      const auto known = remembered.find(request.name);
      REQUIRE(pending.emplace(request.name, request).second);
      if (known != remembered.end() && known->second.second == request) {
        report.bits.push_back(known->second.first);
      } else {
        report.requests.push_back(std::move(request));
      }
    }
    return report;
  }
  void Forget(uint64_t id) {
    const auto it = name_of.find(id);
    if (it == name_of.end()) return;
    remembered.erase(it->second);
    name_of.erase(it);
  }
  void Hear(int me, const Decision& decision) {
    REQUIRE(decision.sequence == ++heard);
    auto verdict = decision.verdicts.begin();
    for (uint64_t id : decision.order) {
      if (id != 0) {
        REQUIRE(pending.erase(name_of.at(id)) == 1);
        ++done;
        continue;
      }
      const Verdict& v = *verdict++;
      if (v.only_rank >= 0 && v.only_rank != me) continue;
      const auto it = pending.find(v.name);
      REQUIRE(it != pending.end());
      ++(v.status.ok() ? done : failed);
      if (v.status.ok() && v.cache_id != 0) {
        const auto old = remembered.find(v.name);
        if (old != remembered.end()) Forget(old->second.first);
        remembered[v.name] = {v.cache_id, it->second};
        name_of[v.cache_id] = v.name;
      }
      pending.erase(it);
    }
    REQUIRE(verdict == decision.verdicts.end());
    for (uint64_t id : decision.evicted) Forget(id);
  }
};

// Ranks report the same tensors each step in their own random order and pieces, some of them in
// groups, some with a new shape, one now and then with a shape of its own; decisions reach them
// late; caches are of any size. Every rank must get one verdict for each of its tensors, good where
// the ranks agree, bad where not, in whole groups.
TEST_CASE("of several ranks that have left the first one is named") {
  HandFed f(4);
  Report bye;
  bye.leaving = true;
  f.Hear(3, bye);
  f.Hear(1, bye);
  f.coordinator.Decide();
  f.Hear(2, Of({Named("a")}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 1);
  CHECK(
      decision.verdicts[0].status.message().starts_with("tensor 'a' needs rank 3, which has left"));
}

TEST_CASE("any interleaving of 5 ranks and 24 tensors over 30 steps is agreed whole") {
  constexpr int kRanks = 5, kTensors = 24, kSteps = 30;
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto any = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    HandFed f(kRanks, any(40));
    std::vector<FarRank> ranks(kRanks);
    std::deque<Decision> decisions;
    uint64_t dropped = 0;  // decisions that every rank has heard
    std::vector<int64_t> shape(kTensors, 4);
    for (int step = 0; step < kSteps; ++step) {
      if (any(3) == 0) ++shape[static_cast<size_t>(any(kTensors))];
      const int odd_rank = any(6), odd_tensor = any(kTensors);  // rank 5: nobody differs
      std::vector<std::vector<int>> left(kRanks);
      for (auto& mine : left) {
        for (int t = 0; t < kTensors; ++t) {
          if (t < 4 || t % 4 == 0) mine.push_back(t);  // from 4 on, a group of four at a time
        }
        std::shuffle(mine.begin(), mine.end(), random);
      }
      const auto hear = [&](int r) {
        FarRank& rank = ranks[static_cast<size_t>(r)];
        if (rank.heard - dropped < decisions.size()) rank.Hear(r, decisions[rank.heard - dropped]);
      };
      const auto waits = [&] {
        return std::any_of(ranks.begin(), ranks.end(),
                           [](const FarRank& rank) { return !rank.pending.empty(); }) ||
               std::any_of(left.begin(), left.end(), [](const auto& l) { return !l.empty(); });
      };
      while (waits()) {
        const int r = any(kRanks);
        auto& mine = left[static_cast<size_t>(r)];
        std::vector<Request> requests;
        for (int n = any(6); n > 0 && !mine.empty(); --n, mine.pop_back()) {
          const int first = mine.back(), members = first < 4 ? 1 : 4;
          for (int t = first; t < first + members; ++t) {
            Request request = Named(std::to_string(t), shape[static_cast<size_t>(t)]);
            if (r == odd_rank && t == odd_tensor) request.shape = {1000};
            if (members > 1) {
              request.group = "g" + std::to_string(first);
              request.group_size = members;
              request.group_hash = static_cast<uint64_t>(first);
            }
            requests.push_back(std::move(request));
          }
        }
        f.Hear(r, ranks[static_cast<size_t>(r)].Submit(std::move(requests)));
        if (any(2) == 0 && f.coordinator.HasNews()) decisions.push_back(f.coordinator.Decide());
        for (int n = any(4); n > 0; --n) hear(any(kRanks));
        while (!decisions.empty() && std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
          return rank.heard > dropped;
        })) {
          decisions.pop_front();
          ++dropped;
        }
      }
      const int bad = odd_rank == kRanks ? 0 : odd_tensor < 4 ? 1 : 4;
      for (FarRank& rank : ranks) {
        REQUIRE(rank.failed == bad);
        REQUIRE(rank.done == kTensors - bad);
        rank.done = rank.failed = 0;
      }
      REQUIRE(f.coordinator.Pending().empty());
    }
  }
}

}  // namespace
}  // namespace horon
