// What the watch threads of a node find out together, without rank 0 and without any runtime.
#include "runtime/core/lookout.h"

#include <memory>
#include <string>
#include <vector>

#include "test/support/watched_rank.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using test::Has;

// The last node of a job: each rank, by its number there.
class Node {
 public:
  explicit Node(int ranks, int nodes = 1)
      : topology_(Topology::Blocks(ranks, ranks / nodes)), sets_(ranks) {
    const std::vector<int>& here = topology_.members(nodes - 1);
    segment_ =
        SharedSegment::InProcess(SegmentShape::For(static_cast<int>(here.size()), 0, 4096)).value();
    for (const int rank : here)
      ranks_.push_back(
          std::make_unique<test::WatchedRank>(segment_, topology_, rank, ops_, sets_));
  }
  void Submit(int rank, const std::string& name) { at(rank).Submit(name, now_); }
  void Finish(int rank, const std::string& name) { at(rank).Finish(name); }
  void Wait(int rank, const std::string& name) { at(rank).Wait("0/" + name); }
  void Unanswered(int rank, int ms) { at(rank).Unanswered(milliseconds{ms}); }
  // All watch threads but `without` look, every second; `moving` runtimes run cycles.
  void Pass(int seconds, const std::vector<int>& moving, int without = -1) {
    for (int s = 0; s < seconds; ++s) {
      now_ += milliseconds{1000};
      for (const int rank : moving) segment_->notice(rank).cycles.fetch_add(1);
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r)
        if (r != without) of(r).See(at(r).Look(now_));
    }
  }
  Lookout& of(int rank) { return at(rank).lookout(); }
  SharedSegment& segment() { return *segment_; }

 private:
  test::WatchedRank& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  Topology topology_;
  ProcessSets sets_;
  OpTable ops_;
  std::shared_ptr<SharedSegment> segment_;
  std::vector<std::unique_ptr<test::WatchedRank>> ranks_;
  Lookout::Clock::time_point now_{milliseconds{50'000}};
};

TEST_CASE("each rank that waits says that rank 0 stands still, and who lacks the tensor") {
  Node node(4);
  for (const int rank : {0, 1, 2, 3}) node.Submit(rank, "first");
  for (const int rank : {0, 1, 2, 3}) node.Finish(rank, "first");
  for (const int rank : {0, 1, 3}) node.Submit(rank, "late");
  for (const int rank : {0, 1, 3}) node.Wait(rank, "late");
  node.Pass(9, {1, 2, 3});
  CHECK(!node.of(1).MustSay());  // within the patience
  CHECK(node.of(2).asked());
  CHECK(!node.of(3).asked());
  node.Pass(2, {1, 2, 3});
  for (const int rank : {1, 3}) {
    const auto said = node.of(rank).MustSay();
    REQUIRE(said);
    Has(*said, "the runtime of rank 0 has not moved for 10 s: its thread " +
                   std::to_string(gettid()) + " (");
    Has(*said,
        "tensor 'late': submitted by ranks 0, 1, 3 11 s ago; missing: rank 2 is busy; it "
        "last submitted 'first' 11 s ago; its main thread is at train.py:57 in load");
    CHECK(said->find("nothing is known") == std::string::npos);
    CHECK(!node.of(rank).MustSay());  // once
  }
  CHECK(!node.of(2).MustSay());  // it waits for nothing
  Has(node.of(0).Missing(), "submitted by ranks 0, 1, 3 11 s ago; missing: rank 2 is busy");
  node.Pass(1, {0, 1, 2, 3});
  node.Pass(9, {1, 2, 3});
  CHECK(!node.of(1).MustSay());  // it has moved again
}

TEST_CASE("a name of every step is missing where it was submitted less often") {
  Node node(2);
  for (const int rank : {0, 1}) node.Submit(rank, "step");
  for (const int rank : {0, 1}) node.Finish(rank, "step");
  node.Submit(1, "step");
  node.Wait(1, "step");
  node.Pass(3, {1});
  CHECK(node.of(0).asked());
  Has(node.of(1).Missing(), "submitted by rank 1 3.0 s ago; missing: rank 0 is busy");
  node.Submit(0, "step");  // and it is through with it, while rank 1's part still travels
  node.Finish(0, "step");
  node.Pass(2, {1});
  CHECK(!node.of(0).asked());
  CHECK(node.of(1).Missing().ends_with("submitted by ranks 0, 1 5.0 s ago"));
}

TEST_CASE("who has not been asked yet has time to answer before anything is said") {
  Node node(2);
  node.Wait(1, "x");
  node.Pass(9, {1});  // it waits for something of another name
  node.Submit(1, "late");
  node.Wait(1, "late");
  node.Pass(3, {1}, 0);
  CHECK(!node.of(1).complete());
  CHECK(!node.of(1).MustSay());
  node.Pass(1, {1});
  CHECK(node.of(1).complete());
  const auto said = node.of(1).MustSay();
  REQUIRE(said);
  Has(*said, "missing: rank 0 has submitted nothing yet");
}

TEST_CASE("of a process that is stopped altogether nothing is known but that") {
  Node node(3);
  for (const int rank : {0, 1, 2}) node.Submit(rank, "x");
  node.Wait(1, "x");
  node.Pass(12, {1, 2}, 0);
  const auto said = node.of(1).MustSay();
  REQUIRE(said);
  Has(*said,
      "the runtime of rank 0 has not moved for 11 s, and its watch thread says nothing: the "
      "process is stopped");
  Has(*said, "submitted by ranks 1, 2 12 s ago; nothing is known here of rank 0");
}

TEST_CASE("ranks that left or died do not stand still, nor do those that nobody waits for") {
  Node node(3);
  node.Submit(2, "x");
  node.Pass(20, {2});
  CHECK(!node.of(2).MustSay());
  node.Wait(2, "x");
  node.segment().MarkLeft(0);
  node.segment().MarkDead(1, "rank 1 was killed");
  node.Pass(20, {2});
  CHECK(!node.of(2).MustSay());
}

TEST_CASE("rank 0 of another host that does not answer is named with what this host knows") {
  Node node(4, 2);
  for (const int rank : {0, 1}) node.Submit(rank, "x");  // ranks 2 and 3
  node.Wait(1, "x");
  node.Unanswered(1, 9'000);
  node.Pass(3, {0, 1});
  CHECK(!node.of(1).MustSay());
  node.Unanswered(1, 12'000);
  node.Pass(1, {0, 1});
  const auto said = node.of(1).MustSay();
  REQUIRE(said);
  Has(*said,
      "rank 0, which is on another host, has not answered for 12 s. Told without it: tensor "
      "'x': submitted by ranks 2, 3 4.0 s ago; nothing is known here of ranks 0, 1");
  CHECK(!node.of(1).MustSay());
}

TEST_CASE("a rank 0 elsewhere is named beside a rank here, unless that one is the way to it") {
  for (const int stuck : {0, 2}) {  // ranks 3 and 5; a node speaks to rank 0 through its first
    Node node(6, 2);
    for (const int rank : {0, 1, 2}) node.Submit(rank, "x");
    node.Wait(1, "x");
    node.Unanswered(1, 12'000);
    node.Pass(12, stuck == 0 ? std::vector<int>{1, 2} : std::vector<int>{0, 1});
    const std::string trouble = node.of(1).Trouble();
    Has(trouble,
        "the runtime of rank " + std::to_string(3 + stuck) + " has not moved for 11 s: its ");
    CHECK((trouble.find("; rank 0, which is on another host, has not answered for 12 s") !=
           std::string::npos) == (stuck == 2));
  }
}

TEST_CASE("a rank that looks late tells the others what it waits for before it says anything") {
  Node node(4, 2);
  node.Submit(1, "x");
  node.Wait(1, "x");
  node.Unanswered(1, 12'000);  // at its first look
  node.Pass(1, {0, 1});
  CHECK(!node.of(1).MustSay());
  node.Pass(2, {0, 1});
  const auto said = node.of(1).MustSay();
  REQUIRE(said);
  Has(*said, "submitted by rank 3 ");
  Has(*said, "missing: rank 2 has submitted nothing yet");
}

TEST_CASE("a notice survives names without limit, and a writer that was stopped in the middle") {
  auto segment = SharedSegment::InProcess(SegmentShape::For(2, 0, 4096)).value();
  NoticeWords& words = segment->notice(1);
  CHECK(!ReadNotice(words));
  Notice notice;
  notice.at_ms = 17;
  notice.where = "thread 5 (horon) sleeps";
  notice.activity.waits = {"0/a", "0/b"};
  notice.activity.doing = "at a.py:1 in f";
  notice.wanted = "0/a";
  notice.calls = 3;
  notice.answers = {0, AnswerTo(notice, true)};
  Post(words, notice);
  CHECK(ReadNotice(words) == notice);
  notice.wanted = "0/" + std::string(5000, 'n');
  notice.activity.waits = {notice.wanted};
  notice.answers.assign(600, 1);
  Post(words, notice);
  const auto read = ReadNotice(words);
  REQUIRE(read);
  CHECK(read->wanted.empty());
  CHECK(read->where == notice.where);
  CHECK(!read->answers.empty());
  words.version.fetch_add(1);
  CHECK(!ReadNotice(words));
}

}  // namespace
}  // namespace horon
