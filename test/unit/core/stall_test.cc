#include "runtime/core/stall.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Activity Waits(std::vector<std::string> keys, uint64_t submits = 1) {
  Activity a;
  a.callers = a.blocked = static_cast<int32_t>(keys.size());
  a.waits = std::move(keys);
  a.submits = submits;
  return a;
}
Activity Busy(const std::string& last = "") {
  Activity a;
  a.callers = 1;
  a.last = last;
  a.last_ms = 2300;
  return a;
}
const StallJudge::Time kStart{seconds{1000}};

TEST_CASE("ranks that wait for each other have no hope, whoever waits for one that computes has") {
  const PendingTensor a{"0/a", {0}, {1}, kStart}, b{"0/b", {1}, {0}, kStart},
      c{"0/c", {2}, {0, 1, 3}, kStart};
  using Set = std::set<int>;
  CHECK(HopelessRanks({a, b}, {Waits({"0/a"}), Waits({"0/b"})}) == Set{0, 1});
  CHECK(HopelessRanks({a, b}, {Waits({"0/a"}), Busy()}) == Set{});
  CHECK(HopelessRanks({a}, {Waits({"0/a"}), Waits({"0/running"})}) == Set{});
  CHECK(HopelessRanks({a, b}, {Waits({"0/a"}), std::nullopt}) == Set{});
  // rank 2 hangs on two that hang on each other; rank 3 is free
  CHECK(HopelessRanks({a, b, c}, {Waits({"0/a"}), Waits({"0/b"}), Waits({"0/c"}), Busy()}) ==
        Set{0, 1, 2});
  // rank 0 has not submitted it again: it waits for the last run, with which rank 1 is through
  CHECK(HopelessRanks({{"0/a", {1, 2}, {0, 3}, kStart}},
                      {Waits({"0/a"}), Waits({"0/a"}), Waits({"0/a"}), Waits({"0/a"})}) == Set{});
  // one thread of rank 0 still runs
  Activity half = Waits({"0/a"});
  half.callers = 2;
  CHECK(HopelessRanks({a, b}, {half, Waits({"0/b"})}) == Set{});
  // one of its two threads waits for something that comes: it may do what the other needs
  const PendingTensor d{"0/d", {0}, {2}, kStart};
  CHECK(HopelessRanks({a, b, d}, {Waits({"0/a", "0/d"}), Waits({"0/b"}), Busy()}) == Set{});
}

TEST_CASE("a report says where a busy rank's program is, if that is known") {
  Activity busy = Busy("0/b");
  const PendingTensor a{"0/a", {0}, {1}, kStart};
  CHECK(DescribePending(a, {Waits({"0/a"}), busy}, kStart + seconds{5}).ends_with("2.3 s ago"));
  busy.doing = "at train.py:57 in load";
  CHECK(DescribePending(a, {Waits({"0/a"}), busy}, kStart + seconds{5})
            .ends_with("2.3 s ago; its main thread is at train.py:57 in load"));
}

TEST_CASE("a report names every missing rank, and says what eight of them do") {
  const PendingTensor a{"0/a", {0}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, kStart};
  const std::vector<std::optional<Activity>> all(12, Busy());
  const std::string text = DescribePending(a, all, kStart);
  CHECK(text.ends_with("; rank 8 has submitted nothing yet; and ranks 9, 10, 11"));
}

TEST_CASE("diverged tensors fail after two rounds of the same answers, with the reason") {
  const std::vector<PendingTensor> pending = {{"0/a", {0, 2}, {1}, kStart},
                                              {"0/b", {1}, {0, 2}, kStart}};
  StallJudge judge(3, {});
  uint64_t submits = 5;
  Activity waiter = Waits({"0/b"}, 3);
  const auto round = [&](milliseconds at) {
    const auto now = kStart + at;
    CHECK(judge.Asked(now, pending).inquire);
    CHECK(judge.Answered(0, Waits({"0/a"}, submits), now, pending).failed.empty());
    CHECK(judge.Answered(2, Waits({"0/a"}, 3), now, pending).failed.empty());
    return judge.Answered(1, waiter, now, pending).failed;
  };
  CHECK(round(milliseconds{500}).empty());
  ++submits;  // rank 0 did something in between
  CHECK(round(milliseconds{1000}).empty());
  waiter.doing = "at train.py:57 in step";
  const auto failed = round(milliseconds{1500});
  REQUIRE(failed.size() == 2);
  CHECK(failed[0].first == "0/a");
  CHECK(failed[0].second.code() == Code::kInvalidArgument);
  CHECK(failed[0].second.message() ==
        "tensor 'a' was submitted by ranks 0, 2, but rank 1 waits for 'b', which cannot happen "
        "before: the ranks' programs took different ways; rank 1: its main thread is at "
        "train.py:57 in step");
  CHECK(failed[1].second.message().find("tensor 'b' was submitted by rank 1, but rank 0 waits "
                                        "for 'a'") == 0);
}

PendingTensor InGroup(const std::string& key, std::vector<int> ready, std::vector<int> missing,
                      int size) {
  return {key,  std::move(ready),           std::move(missing), kStart, "0/g",
          size, static_cast<uint64_t>(size)};
}

TEST_CASE("groups of one name that differ clash, if every rank has submitted just one of them") {
  const PendingTensor two = InGroup("0/g_1of2", {0}, {1, 2}, 2),
                      three = InGroup("0/g_1of3", {1}, {0, 2}, 3),
                      all_three = InGroup("0/g_1of3", {1, 2}, {0}, 3);
  CHECK(ClashingGroups({two, three}).empty());               // rank 2 may still submit either
  CHECK(ClashingGroups({two, two, all_three}).size() == 1);  // two members of the same group
  CHECK(ClashingGroups({InGroup("0/g_1of2", {0, 1}, {2}, 2), all_three}).empty());  // 1 has both
  PendingTensor alone = two;
  alone.group.clear();
  CHECK(ClashingGroups({alone, all_three}).empty());
}

TEST_CASE("a rank that polls hears of groups that differ after a second, unless it goes on") {
  const std::vector<PendingTensor> pending = {InGroup("0/g_1of2", {0}, {1}, 2),
                                              InGroup("0/g_1of3", {1}, {0}, 3)};
  StallJudge judge(2, {});
  Activity polls = Busy("0/g_1of3");
  const auto round = [&](int ms) {
    const auto now = kStart + milliseconds{ms};
    CHECK(judge.Asked(now, pending).inquire);
    CHECK(judge.Answered(0, Waits({"0/g_1of2"}), now, pending).failed.empty());
    return judge.Answered(1, polls, now, pending).failed;
  };
  CHECK(round(500).empty());
  CHECK(round(600).empty());  // too early
  ++polls.submits;
  CHECK(round(1100).empty());  // it went on
  const auto failed = round(1900);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].first == "0/g_1of2");
  CHECK(failed[0].second.code() == Code::kInvalidArgument);
  CHECK(failed[0].second.message() ==
        "Mismatched groups: rank 0 submitted group 'g' as 2 tensors (one is 'g_1of2'), rank 1 "
        "submitted it as 3 tensors (one is 'g_1of3').");
}

TEST_CASE("of a group and a single tensor the verdict says which is in a group") {
  const std::vector<PendingTensor> pending = {{"0/a", {0}, {1}, kStart},
                                              InGroup("0/g_1of2", {1}, {0}, 2)};
  StallJudge judge(2, {});
  StallJudge::Findings findings;
  for (int i = 0; i < 2; ++i) {
    judge.Asked(kStart, pending);
    judge.Answered(0, Waits({"0/a"}), kStart, pending);
    findings = judge.Answered(1, Waits({"0/g_1of2"}), kStart, pending);
  }
  REQUIRE(findings.failed.size() == 2);
  CHECK(findings.failed[0].second.message().find(
            "tensor 'a' was submitted by rank 0, but rank 1 waits for 'g_1of2' of group 'g', ") ==
        0);
  CHECK(findings.failed[1].second.message().find(
            "tensor 'g_1of2' of group 'g' was submitted by rank 1, but rank 0 waits for 'a', ") ==
        0);
}

TEST_CASE("a busy rank is reported, again and again, and in the end given up") {
  const std::vector<PendingTensor> pending = {{"3/a", {0}, {1}, kStart}};
  StallJudge judge(2, {seconds{10}, seconds{100}, seconds{30}});
  int warnings = 0;
  std::vector<std::pair<std::string, Status>> failed;
  std::string warning;
  for (int s = 1; s <= 100; ++s) {
    const auto now = kStart + seconds{s};
    for (auto findings :
         {judge.Asked(now, pending), judge.Answered(0, Waits({"3/a"}), now, pending),
          judge.Answered(1, Busy("0/before"), now, pending)}) {
      warnings += static_cast<int>(findings.warnings.size());
      if (!findings.warnings.empty()) warning = findings.warnings[0];
      if (failed.empty()) failed = findings.failed;
      CHECK(findings.lost == -1);
    }
    CHECK((failed.empty() || s == 100));
  }
  CHECK(warnings == 9);
  // Rank 1 said so a second before.
  CHECK(warning ==
        "tensor 'a' (process set 3): submitted by rank 0 90 s ago; missing: rank 1 is busy; it "
        "last submitted 'before' 3.3 s ago");
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].second.code() == Code::kAborted);
  CHECK(failed[0].second.message().find("HORON_STALL_SHUTDOWN_TIME_SECONDS") != std::string::npos);
}

TEST_CASE("a rank that does not answer is given up after the limit, one that left is not asked") {
  StallJudge judge(3, {seconds{60}, seconds{1800}, seconds{30}});
  judge.Left(2);
  CHECK(judge.Asked(kStart, {}).inquire);
  judge.Answered(0, Busy(), kStart, {});
  CHECK_FALSE(judge.complete());
  for (int s = 1; s < 30; ++s) {
    const auto findings = judge.Asked(kStart + seconds{s}, {});
    CHECK_FALSE(findings.inquire);  // the last round is not complete
    CHECK(findings.lost == -1);
  }
  const auto findings = judge.Asked(kStart + seconds{30}, {});
  CHECK(findings.lost == 1);
  CHECK(findings.lost_because.find("rank 1 has not answered for 30 s") == 0);

  StallJudge patient(2, {seconds{60}, seconds{1800}, seconds{0}});
  patient.Asked(kStart, {});
  CHECK(patient.Asked(kStart + seconds{100000}, {}).lost == -1);
}

}  // namespace
}  // namespace horon
