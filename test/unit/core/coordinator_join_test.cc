// Decisions while ranks have joined: the coordinator is fed by hand.
#include <algorithm>

#include "test/support/coordinator.h"

namespace horon {
namespace {

using test::HandFed;
using test::Named;
using test::Names;
using test::Of;

Request JoinRequest() {
  Request r = Named("join of all ranks", 0);
  r.op = "join";
  r.shape = {};
  return r;
}

Report Join() { return Of({JoinRequest()}); }

Request With(const std::string& name, const std::string& op, Shape shape) {
  Request r = Named(name);
  r.op = op;
  r.shape = std::move(shape);
  return r;
}

TEST_CASE("what waits for a rank is ready when it joins, and what comes later without it") {
  HandFed f(3);
  f.Hear(0, Of({Named("a")}));
  f.Hear(2, Of({Named("a")}));
  CHECK_FALSE(f.coordinator.HasNews());
  f.Hear(1, Join());
  Decision decision = f.coordinator.Decide();
  REQUIRE(Names(decision) == std::vector<std::string>{"a"});
  CHECK(decision.verdicts[0].joined == std::vector<int32_t>{1});
  CHECK(decision.verdicts[0].stand_in == Named("a"));
  CHECK(decision.verdicts[0].cache_id == 0);
  f.Hear(0, Of({Named("b")}));
  CHECK_FALSE(f.coordinator.HasNews());
  f.Hear(2, Of({Named("b")}));
  decision = f.coordinator.Decide();
  REQUIRE(Names(decision) == std::vector<std::string>{"b"});
  CHECK(decision.verdicts[0].joined == std::vector<int32_t>{1});
}

TEST_CASE("joining ends when all have joined, and names the last") {
  HandFed f(3);
  f.Hear(2, Join());
  f.Hear(0, Join());
  CHECK_FALSE(f.coordinator.HasNews());
  f.Hear(1, Join());
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 1);
  CHECK(decision.verdicts[0].agreed.sizes == std::vector<int64_t>{1});
  for (int r : {0, 1}) f.Hear(r, Of({Named("a")}));
  CHECK_FALSE(f.coordinator.HasNews());  // nobody has joined any more
  f.Hear(2, Of({Named("a")}));
  CHECK(f.coordinator.Decide().verdicts.at(0).joined.empty());
}

TEST_CASE("what a rank reported before it joined counts") {
  HandFed f(2);
  f.Hear(0, Of({Named("a"), JoinRequest()}));
  f.Hear(1, Of({Named("a"), Named("b")}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(Names(decision) == std::vector<std::string>{"a", "b"});
  CHECK(decision.verdicts[0].joined.empty());
  CHECK(decision.verdicts[1].joined == std::vector<int32_t>{0});
}

TEST_CASE("what is still pending when the last rank joins runs with the ranks that asked") {
  HandFed f(3);
  f.Hear(0, Of({Named("a"), JoinRequest()}));
  f.Hear(1, Join());
  f.Hear(2, Join());
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 2);
  const Verdict& a = decision.verdicts[decision.verdicts[0].name == "a" ? 0 : 1];
  CHECK(a.joined == std::vector<int32_t>{1, 2});
  CHECK(f.coordinator.Pending().empty());
}

TEST_CASE("remembered agreements outlive a join, and are not used during it") {
  HandFed f(2);
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("a")}));
  const uint64_t id = f.coordinator.Decide().verdicts.at(0).cache_id;
  Report bit;
  bit.bits = {id};
  f.Hear(1, Join());
  f.Hear(0, bit);
  Decision decision = f.coordinator.Decide();
  REQUIRE(decision.order == CacheIds{0});
  CHECK(decision.verdicts[0].name == "a");
  CHECK(decision.verdicts[0].cache_id == 0);
  f.Hear(0, Join());
  CHECK(f.coordinator.Decide().evicted.empty());
  for (int r = 0; r < 2; ++r) f.Hear(r, bit);
  decision = f.coordinator.Decide();
  CHECK(decision.verdicts.empty());
  CHECK(decision.order == CacheIds{id});
}

TEST_CASE("a bit sent before its rank joined is answered") {
  HandFed f(2);
  for (int r = 0; r < 2; ++r) f.Hear(r, Of({Named("a")}));
  Report bit;
  bit.bits = {f.coordinator.Decide().verdicts.at(0).cache_id};
  f.Hear(0, bit);
  f.Hear(1, Join());
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 1);
  CHECK(decision.verdicts[0].joined == std::vector<int32_t>{1});
}

TEST_CASE("a joined rank gives no rows to allgather and alltoall") {
  HandFed f(3);
  f.Hear(0, Join());
  Request gather = With("g", "allgather", {5, 2}), all = With("x", "alltoall", {6, 4});
  f.Hear(1, Of({gather, all}));
  gather.shape[0] = 7;
  all.splits = {3, 2, 1};
  f.Hear(2, Of({gather, all}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(Names(decision) == std::vector<std::string>{"g", "x"});
  CHECK(decision.verdicts[0].agreed.sizes == std::vector<int64_t>{0, 5, 7});
  CHECK(decision.verdicts[0].stand_in.shape == Shape{0, 2});
  CHECK(decision.verdicts[1].agreed.sizes == std::vector<int64_t>{0, 0, 0, 2, 2, 2, 3, 2, 1});
  CHECK(decision.verdicts[1].stand_in.splits.empty());
}

TEST_CASE("a root that has joined is an error for those who ask, and only for them") {
  HandFed f(3);
  f.Hear(1, Join());
  for (int r : {0, 2}) f.Hear(r, Of({With("w", "broadcast:root=1", {3})}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 2);
  for (const Verdict& v : decision.verdicts) {
    CHECK(v.status.message().find("root rank 1 has joined") != std::string::npos);
    CHECK(v.only_rank != 1);
  }
  f.Hear(1, Of({With("w", "broadcast:root=1", {3})}));  // too late: refused, not answered anew
  CHECK(f.coordinator.Decide().verdicts.at(0).status.message().find("has joined") !=
        std::string::npos);
}

TEST_CASE("ranks that disagree are told so; one that has joined is on no side") {
  HandFed f(3);
  f.Hear(1, Join());
  f.Hear(0, Of({Named("a", 4)}));
  f.Hear(2, Of({Named("a", 5)}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 2);
  const std::string& text = decision.verdicts[0].status.message();
  CHECK(text.find("rank [0] has shape [4], rank [2] has shape [5]") != std::string::npos);
}

TEST_CASE("a failure that a rank still owed is forgotten when it joins") {
  HandFed f(3);
  Request a = Named("a");
  a.group = "g", a.group_size = 1, a.group_hash = 1;
  f.Hear(0, Of({a}));
  a.group_hash = 2;
  f.Hear(1, Of({a}));  // fails before rank 2 has reported anything
  CHECK(f.coordinator.Decide().verdicts.size() == 2);
  f.Hear(2, Join());
  for (int r : {0, 1}) f.Hear(r, Join());
  f.coordinator.Decide();
  for (int r = 0; r < 3; ++r) f.Hear(r, Of({Named("a")}));
  CHECK(f.coordinator.Decide().verdicts.at(0).status.ok());
}

TEST_CASE("groups are ready without a joined rank, whole") {
  HandFed f(3);
  Request a = Named("a"), b = Named("b");
  for (Request* r : {&a, &b}) r->group = "g", r->group_size = 2, r->group_hash = 1;
  f.Hear(1, Of({b, a}));
  f.Hear(0, Of({a, b}));
  f.Hear(2, Join());
  auto names = Names(f.coordinator.Decide());
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"a", "b"});
}

TEST_CASE("process sets do not change while ranks have joined, and run without these") {
  HandFed f(3);
  f.sets.Add(1, {0, 2});
  f.Hear(2, Join());
  Request in_set = Named("s");
  in_set.process_set = 1;
  f.Hear(0, Of({in_set}));
  CHECK(f.coordinator.Decide().verdicts.at(0).joined == std::vector<int32_t>{2});
  Request add = Named("change of process sets");
  add.op = "process_set.add";
  add.splits = {0, 1};
  for (int r : {0, 1}) f.Hear(r, Of({add}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 2);
  CHECK(decision.verdicts[0].status.message().find("[2] have joined") != std::string::npos);
}

Request Form(Shape ranks) {
  Request r = Named("process set " + ToString(ranks), 0);
  r.op = "process_set.form";
  r.splits = std::move(ranks);
  return r;
}

TEST_CASE("a set is formed by its ranks alone, and several at once") {
  HandFed f(5);
  f.Hear(0, Of({Form({0, 1})}));
  f.Hear(3, Of({Form({3, 4})}));
  CHECK_FALSE(f.coordinator.HasNews());
  for (const PendingTensor& tensor : f.coordinator.Pending()) CHECK(tensor.missing.size() == 1);
  f.Hear(1, Of({Form({0, 1})}));
  f.Hear(4, Of({Form({3, 4})}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 2);
  CHECK(decision.verdicts[0].agreed.sizes == std::vector<int64_t>{1});
  CHECK(decision.verdicts[0].joined == std::vector<int32_t>{2, 3, 4});
  CHECK(decision.verdicts[0].stand_in.splits == Shape{0, 1});
  CHECK(decision.verdicts[1].agreed.sizes == std::vector<int64_t>{2});
  f.sets.Add(1, {0, 1}, true);
  for (int r : {0, 1}) f.Hear(r, Of({Form({0, 1})}));
  CHECK(f.coordinator.Decide().verdicts.at(0).agreed.sizes == std::vector<int64_t>{1});  // again
}

TEST_CASE("a set of a rank that has joined is not formed; others are") {
  HandFed f(4);
  f.Hear(2, Join());
  f.Hear(0, Of({Form({0, 2})}));
  f.Hear(1, Of({Form({1, 3})}));
  f.Hear(3, Of({Form({1, 3})}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 2);
  CHECK(decision.verdicts[0].only_rank == 0);
  CHECK_FALSE(decision.verdicts[0].status.ok());
  CHECK(decision.verdicts[1].status.ok());
}

TEST_CASE("a set is formed after another rank has left, and while one leaves; not with it") {
  HandFed f(4);
  f.Hear(0, Of({Form({0, 1})}));
  f.Hear(2, Of({Form({2, 3})}));
  f.coordinator.Leave(3);
  f.Hear(1, Of({Form({0, 1})}));
  f.Hear(0, Of({Form({0, 3})}));
  std::map<std::string, Code> ended;
  for (const Verdict& verdict : f.coordinator.Decide().verdicts)
    ended[verdict.name] = verdict.status.code();
  CHECK(ended == std::map<std::string, Code>{{"process set [0, 1]", Code::kOk},
                                             {"process set [2, 3]", Code::kAborted},
                                             {"process set [0, 3]", Code::kAborted}});
}

TEST_CASE("a rank that leaves fails the join of the others") {
  HandFed f(3);
  f.Hear(0, Join());
  f.coordinator.Leave(1);
  const Decision decision = f.coordinator.Decide();
  REQUIRE(decision.verdicts.size() == 1);
  CHECK(decision.verdicts[0].only_rank == 0);
  CHECK(decision.verdicts[0].status.code() == Code::kAborted);
}

TEST_CASE("a stalled join is dated by the last decision; joined ranks miss nothing") {
  using std::chrono::seconds;
  HandFed f(4);
  const std::chrono::steady_clock::time_point start{};
  f.coordinator.SetTime(start + seconds(10));
  f.Hear(0, Join());
  f.Hear(1, Of({Named("a")}));
  f.coordinator.SetTime(start + seconds(50));
  f.Hear(2, Of({Named("a")}));
  for (const PendingTensor& tensor : f.coordinator.Pending()) {
    if (tensor.key == "0/a") CHECK(tensor.missing == std::vector<int>{3});
  }
  f.Hear(3, Of({Named("a")}));
  f.coordinator.Decide();
  const auto pending = f.coordinator.Pending();
  REQUIRE(pending.size() == 1);
  CHECK(pending[0].since == start + seconds(50));
  CHECK(pending[0].missing == std::vector<int>{1, 2, 3});
}

}  // namespace
}  // namespace horon
