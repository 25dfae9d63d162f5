// Decisions without transports: the coordinator is fed by hand.
#include "runtime/core/coordinator.h"

#include <random>
#include <set>

#include "test/support/catch.h"

namespace horon {
namespace {

Request Named(const std::string& name, int64_t count = 4) {
  Request r;
  r.name = name;
  r.op = "sum";
  r.shape = {count};
  return r;
}

Report Of(std::vector<Request> requests) {
  Report report;
  report.requests = std::move(requests);
  return report;
}

struct Fixture {
  explicit Fixture(int size, int64_t capacity = 100)
      : sets(size), coordinator(size, ops, sets, capacity) {}
  void Hear(int rank, Report report) { REQUIRE(coordinator.Hear(rank, std::move(report)).ok()); }
  OpTable ops;
  ProcessSets sets;
  Coordinator coordinator;
};

std::vector<std::string> Names(const Decision& decision) {
  std::vector<std::string> names;
  for (const Verdict& v : decision.verdicts) names.push_back(v.name);
  return names;
}

TEST_CASE("a name is agreed when the last rank reports it, in the order of completion") {
  Fixture f(3);
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
  Fixture f(4);
  f.Hear(1, Of({Named("a")}));
  f.Hear(2, Of({Named("a")}));
  const auto pending = f.coordinator.Pending();
  REQUIRE(pending.size() == 1);
  CHECK(pending[0].key == "0/a");
  CHECK(pending[0].missing == std::vector<int>{0, 3});
}

TEST_CASE("a remembered agreement is repeated by its id alone") {
  Fixture f(2);
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("a")}));
  const uint64_t id = f.coordinator.Decide().verdicts.at(0).cache_id;
  REQUIRE(id != 0);
  Report bit;
  bit.heard = 1;
  bit.bits = {id};
  for (int r = 0; r < 2; ++r) f.Hear(r, bit);
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 1);
  CHECK(decision.verdicts[0].name.empty());
  CHECK(decision.verdicts[0].cache_id == id);
}

TEST_CASE("a bit against a changed request is a disagreement, not a hit") {
  Fixture f(2);
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
  Fixture f(2);
  Report bit;
  bit.bits = {77};
  CHECK(f.coordinator.Hear(1, bit).code() == Code::kInternal);
}

TEST_CASE("an evicted id is understood until every rank has heard of the eviction") {
  Fixture f(2, 1);
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("a")}));
  const uint64_t a = f.coordinator.Decide().verdicts.at(0).cache_id;
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("b")}));
  CHECK(f.coordinator.Decide().evicted == std::vector<uint64_t>{a});
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
  Fixture f(3);
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
  Fixture f(2);
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
  Fixture f(3);
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

// Ranks report the same tensors each step in their own random order and pieces, with caches of
// random size; every step must be agreed whole, with the same verdicts whatever the order.
TEST_CASE("any interleaving of 8 ranks and 40 tensors over 30 steps is agreed whole") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const int64_t capacity = static_cast<int64_t>(random() % 60);
    Fixture f(8, capacity);
    for (int step = 0; step < 30; ++step) {
      std::multiset<int> reports;
      std::vector<std::vector<int>> left(8);
      for (auto& names : left) {
        for (int t = 0; t < 40; ++t) names.push_back(t);
        std::shuffle(names.begin(), names.end(), random);
      }
      std::set<std::string> agreed;
      while (agreed.size() < 40) {
        const int rank = static_cast<int>(random() % 8);
        auto& names = left[static_cast<size_t>(rank)];
        Report report;
        for (size_t n = random() % 6; n > 0 && !names.empty(); --n, names.pop_back())
          report.requests.push_back(Named(std::to_string(names.back())));
        f.Hear(rank, report);
        for (const Verdict& v : f.coordinator.Decide().verdicts) {
          REQUIRE(v.status.ok());
          REQUIRE(agreed.insert(v.name).second);
        }
      }
      REQUIRE(f.coordinator.Pending().empty());
    }
  }
}

}  // namespace
}  // namespace horon
