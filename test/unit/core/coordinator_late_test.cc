// What is not waited for any longer: the coordinator is fed by hand, and so is its clock.
#include <algorithm>

#include "test/support/coordinator.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using test::HandFed;
using test::Named;
using test::Names;
using test::Of;

constexpr milliseconds kPatience{1000};

Request Gossip(const std::string& name, const std::string& op = "gossip:graph=ring") {
  Request request = Named(name);
  request.op = op;
  return request;
}

std::vector<Request> Group(const std::vector<std::string>& names, const std::string& group) {
  std::vector<Request> requests;
  for (const std::string& name : names) {
    requests.push_back(Gossip(name));
    requests.back().group = group;
    requests.back().group_size = static_cast<int32_t>(names.size());
    requests.back().group_hash = 7;
  }
  return requests;
}

struct Clocked : HandFed {
  explicit Clocked(int size) : HandFed(size, 100, kPatience) { Pass(milliseconds{0}); }
  void Pass(milliseconds time) {
    now += time;
    coordinator.SetTime(now);
  }
  std::vector<std::string> Judge() { return coordinator.JudgeLate(now); }
  Coordinator::Time now{std::chrono::hours{1}};
};

// Whom a decision tells to keep what: "rank name", sorted. What fails instead has a '!' in front,
// and what a rank only counts a '+'.
std::vector<std::string> Told(const Decision& decision) {
  std::vector<std::string> told;
  const auto tell = [&](const char* how, int rank, const Verdict& v) {
    told.push_back(how + std::to_string(rank) + " " + v.name);
  };
  for (const Verdict& v : decision.verdicts) {
    CHECK(v.kept == (v.status.ok() && (v.only_rank >= 0 || !v.joined.empty())));
    if (v.only_rank >= 0) {
      tell(v.status.ok() ? "" : "!", v.only_rank, v);
    } else if (v.kept) {
      for (int rank : v.joined) tell("+", rank, v);
    }
  }
  std::sort(told.begin(), told.end());
  return told;
}

TEST_CASE("a round that a rank is too late for is left out, also there when it comes", "[late]") {
  Clocked f(3);
  f.Hear(0, Of({Gossip("w")}));
  f.Pass(milliseconds{500});
  f.Hear(1, Of({Gossip("w")}));
  f.Pass(kPatience - milliseconds{501});
  CHECK(f.Judge().empty());
  CHECK_FALSE(f.coordinator.HasNews());
  CHECK(f.coordinator.late_at() == f.now + milliseconds{1});
  f.Pass(milliseconds{1});  // the first rank has waited that long
  const std::vector<std::string> sentences = f.Judge();
  REQUIRE(sentences.size() == 1);
  CHECK(sentences[0] ==
        "tensor 'w': rank 2 has not come for 1.0 s (HORON_GOSSIP_TIMEOUT): this round is "
        "left out, all ranks keep what they have");
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"+2 w"});
  f.Hear(2, Of({Gossip("w")}));
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"2 w"});
  for (int r : {2, 0, 1}) f.Hear(r, Of({Gossip("w")}));  // the next one
  const Decision decision = f.coordinator.Decide();
  REQUIRE(Names(decision) == std::vector<std::string>{"w"});
  CHECK(decision.verdicts[0].only_rank == -1);
  CHECK(f.coordinator.Pending().empty());
}

TEST_CASE("a late rank owes as many calls as were left out, and no more", "[late]") {
  Clocked f(2);
  for (int round = 0; round < 3; ++round) {
    f.Hear(0, Of({Gossip("w")}));
    f.Pass(kPatience);
    CHECK(f.Judge().size() == 1);
    CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"+1 w"});
  }
  f.Hear(0, Of({Gossip("w")}));
  for (int round = 0; round < 3; ++round) {
    f.Hear(1, Of({Gossip("w")}));
    CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"1 w"});
  }
  f.Hear(1, Of({Gossip("w")}));
  CHECK(f.coordinator.Decide().verdicts.at(0).only_rank == -1);
}

TEST_CASE("what was agreed before is left out under its cache id as well", "[late]") {
  Clocked f(2);
  for (int r : {0, 1}) f.Hear(r, Of({Gossip("w")}));
  const uint64_t id = f.coordinator.Decide().verdicts.at(0).cache_id;
  REQUIRE(id != 0);
  Report again;
  again.bits = {id};
  f.Hear(0, again);
  f.Pass(kPatience);
  CHECK(f.Judge().size() == 1);
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"+1 w"});
  f.Hear(1, again);
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"1 w"});
  for (int r : {0, 1}) f.Hear(r, again);
  CHECK(f.coordinator.Decide().order == CacheIds{id});
}

TEST_CASE("a group is left out as a whole, in one sentence", "[late]") {
  Clocked f(3);
  for (int r : {0, 1}) f.Hear(r, Of(Group({"a", "b", "c"}, "model")));
  for (int r : {0, 1}) f.Hear(r, Of({Gossip("alone")}));
  f.Pass(kPatience);
  const std::vector<std::string> sentences = f.Judge();
  REQUIRE(sentences.size() == 1);
  CHECK(sentences[0].starts_with("tensor 'a' and 3 more: rank 2 has not"));
  CHECK(Told(f.coordinator.Decide()) ==
        std::vector<std::string>{"+2 a", "+2 alone", "+2 b", "+2 c"});
  f.Hear(2, Of(Group({"a", "b", "c"}, "model")));
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"2 a", "2 b", "2 c"});
  f.Hear(2, Of({Gossip("alone")}));
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"2 alone"});
  for (int r : {0, 1, 2}) f.Hear(r, Of(Group({"a", "b", "c"}, "model")));
  CHECK(Told(f.coordinator.Decide()).empty());
  CHECK(f.coordinator.Pending().empty());
}

TEST_CASE("of two groups of one name the one that is late is left out alone", "[late]") {
  Clocked f(2);
  std::vector<Request> other = Group({"c", "d"}, "model");
  for (Request& request : other) request.group_hash = 8;
  f.Hear(0, Of(Group({"a", "b"}, "model")));
  f.Pass(kPatience / 2);
  f.Hear(0, Of(other));
  f.Pass(kPatience / 2);
  CHECK(f.Judge().size() == 1);
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"+1 a", "+1 b"});
  f.Hear(1, Of(other));
  CHECK(f.coordinator.Decide().verdicts.size() == 2);
  f.Hear(1, Of(Group({"a", "b"}, "model")));
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"1 a", "1 b"});
  CHECK(f.coordinator.Pending().empty());
}

TEST_CASE("ranks that disagree on one tensor of a late group hear so for all of it", "[late]") {
  Clocked f(3);
  std::vector<Request> other = Group({"a", "b"}, "model");
  other[1].shape = {9};
  f.Hear(0, Of(Group({"a", "b"}, "model")));
  f.Hear(1, Of(other));
  f.Pass(kPatience);
  CHECK(f.Judge().empty());
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"!0 a", "!0 b", "!1 a", "!1 b"});
}

TEST_CASE("only what may be left out is looked at in time", "[late]") {
  Clocked f(2);
  f.Hear(0, Of({Named("sum")}));
  CHECK(f.coordinator.late_at() == Coordinator::Time::max());
  f.Hear(0, Of({Gossip("w")}));
  CHECK(f.coordinator.late_at() == f.now + kPatience);
  f.Hear(1, Of({Gossip("w")}));
  const uint64_t id = f.coordinator.Decide().verdicts.at(0).cache_id;
  CHECK(f.coordinator.late_at() == Coordinator::Time::max());  // nothing waits
  f.Pass(kPatience);
  Report again;
  again.bits = {id};
  f.Hear(1, again);
  CHECK(f.coordinator.late_at() == f.now + kPatience);
}

TEST_CASE("a rank that has missed two calls of a group is told so for each", "[late]") {
  Clocked f(2);
  for (int round = 0; round < 2; ++round) {
    f.Hear(0, Of(Group({"a", "b"}, "model")));
    f.Pass(kPatience);
    CHECK(f.Judge().size() == 1);
    f.coordinator.Decide();
  }
  for (int round = 0; round < 2; ++round) {
    f.Hear(1, Of(Group({"a", "b"}, "model")));
    CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"1 a", "1 b"});
  }
  f.Hear(1, Of(Group({"a", "b"}, "model")));
  CHECK_FALSE(f.coordinator.HasNews());
}

TEST_CASE("other collectives wait on, also in one group with gossip", "[late]") {
  Clocked f(2);
  std::vector<Request> mixed = Group({"a", "b"}, "mixed");
  mixed[1].op = "sum";
  f.Hear(0, Of({Named("sum"), mixed[0], mixed[1]}));
  f.Pass(10 * kPatience);
  CHECK(f.Judge().empty());
  CHECK_FALSE(f.coordinator.HasNews());
  CHECK(f.coordinator.late_at() == Coordinator::Time::max());
  f.Hear(1, Of({Named("sum"), mixed[0], mixed[1]}));
  CHECK(f.coordinator.Decide().verdicts.size() == 3);
}

TEST_CASE("what cannot be left out fails, on late ranks as well", "[late]") {
  Clocked f(2);
  const Request means = Gossip("mean", "gossip:graph=ring,rounds=4,late=fail");
  f.Hear(0, Of({means}));
  f.Pass(kPatience);
  CHECK(f.Judge().empty());
  Decision decision = f.coordinator.Decide();
  CHECK(Told(decision) == std::vector<std::string>{"!0 mean"});
  CHECK(decision.verdicts[0].status.message() ==
        "tensor 'mean': rank 1 has not come for 1.0 s (HORON_GOSSIP_TIMEOUT)");
  CHECK(decision.verdicts[0].status.code() == Code::kLate);
  f.Hear(1, Of({means}));
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"!1 mean"});
}

TEST_CASE("a process set that is formed in time fails on its own ranks alone", "[late]") {
  Clocked f(4);
  Request form = Named("process set [1, 3]", 0);
  form.splits = {1, 3};
  for (const char* op : {kFormSet, kFormSetInTime}) {
    form.op = op;
    f.Hear(1, Of({form}));
    f.Pass(kPatience);
    CHECK(f.Judge().empty());
    if (form.op == kFormSet) {
      CHECK_FALSE(f.coordinator.HasNews());
      f.Hear(3, Of({form}));
      CHECK(f.coordinator.Decide().verdicts.at(0).status.ok());
      continue;
    }
    CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"!1 process set [1, 3]"});
    f.Hear(3, Of({form}));
    const Decision decision = f.coordinator.Decide();
    CHECK(Told(decision) == std::vector<std::string>{"!3 process set [1, 3]"});
    CHECK(decision.verdicts[0].status.code() == Code::kLate);
    for (const int rank : {1, 3}) f.Hear(rank, Of({form}));
    CHECK(f.coordinator.Decide().verdicts.at(0).status.ok());
  }
}

TEST_CASE("ranks that came and want different topologies hear so", "[late]") {
  Clocked f(3);
  f.Hear(0, Of({Gossip("w")}));
  f.Hear(1, Of({Gossip("w", "gossip:graph=star")}));
  f.Pass(kPatience);
  CHECK(f.Judge().empty());
  const Decision decision = f.coordinator.Decide();
  CHECK(Told(decision) == std::vector<std::string>{"!0 w", "!1 w"});
  CHECK(decision.verdicts[0].status.message().find("graph=star") != std::string::npos);
}

TEST_CASE("a late rank that asks for something else hears both views", "[late]") {
  for (const bool grouped : {false, true}) {
    Clocked f(2);
    std::vector<Request> asked = Group({"a", "b"}, "model"), others = asked;
    if (!grouped) asked = {Gossip("a")}, others = {Gossip("a")};
    f.Hear(0, Of(asked));
    f.Pass(kPatience);
    CHECK(f.Judge().size() == 1);
    f.coordinator.Decide();
    others[0].shape = {5};
    f.Hear(1, Of(others));
    const Decision decision = f.coordinator.Decide();
    REQUIRE(Told(decision).front() == "!1 a");
    CHECK(decision.verdicts[0].status.message() ==
          "Mismatched ALLREDUCE tensor shapes for tensor 'a': rank [0] has shape [4], rank [1] has "
          "shape [5].");
    if (grouped) CHECK(Told(decision).back() == "1 b");
  }
}

TEST_CASE("a late rank that has changed its topology hears both views", "[late]") {
  Clocked f(2);
  f.Hear(0, Of({Gossip("w")}));
  f.Pass(kPatience);
  f.Judge();
  f.coordinator.Decide();
  f.Hear(1, Of({Gossip("w", "gossip:graph=star")}));
  const Decision decision = f.coordinator.Decide();
  REQUIRE(Told(decision) == std::vector<std::string>{"!1 w"});
  const std::string& said = decision.verdicts[0].status.message();
  CHECK(said.find("graph=ring") != std::string::npos);
  CHECK(said.find("graph=star") != std::string::npos);
}

TEST_CASE("ranks that came with other rounds or shapes hear so", "[late]") {
  for (const bool rounds : {false, true}) {
    Clocked f(3);
    Request other = Gossip("w");
    if (rounds) other.round = 7;
    if (!rounds) other.shape = {9};
    f.Hear(0, Of({Gossip("w")}));
    f.Hear(1, Of({other}));
    f.Pass(kPatience);
    CHECK(f.Judge().empty());
    CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"!0 w", "!1 w"});
  }
}

TEST_CASE("who has joined is not late", "[late]") {
  Clocked f(3);
  Request join = Named("join of all ranks", 0);
  join.op = "join";
  f.Hear(2, Of({join}));
  f.Hear(0, Of({Gossip("w")}));
  f.Pass(kPatience);
  const std::vector<std::string> sentences = f.Judge();
  REQUIRE(sentences.size() == 1);
  CHECK(sentences[0].find("rank 1 has not come") != std::string::npos);
  CHECK(Told(f.coordinator.Decide()) == std::vector<std::string>{"+1 w", "+2 w"});
  f.Hear(1, Of({join}));  // it owes nothing any more
  f.Hear(0, Of({join}));
  CHECK(f.coordinator.Decide().verdicts.size() == 1);
  for (int r : {0, 1, 2}) f.Hear(r, Of({Gossip("w")}));
  CHECK(f.coordinator.Decide().verdicts.at(0).only_rank == -1);
}

TEST_CASE("without a limit nobody is late", "[late]") {
  HandFed f(2);
  f.coordinator.SetTime(Coordinator::Time{std::chrono::hours{1}});
  f.Hear(0, Of({Gossip("w")}));
  CHECK(f.coordinator.late_at() == Coordinator::Time::max());
  CHECK(f.coordinator.JudgeLate(Coordinator::Time{std::chrono::hours{100}}).empty());
}

}  // namespace
}  // namespace horon
