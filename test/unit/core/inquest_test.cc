// What the nodes of a job find out together while rank 0's runtime is stuck: every look is made,
// and every letter carried, by hand.
#include "runtime/core/inquest.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/seconds.h"
#include "test/support/watched_rank.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using test::Has;

class Job {
 public:
  Job(int ranks, int local_size)
      : topology_(Topology::Blocks(ranks, local_size)), sets_(ranks), reports_(at(ranks)) {
    for (int node = 0; node < topology_.nodes(); ++node) {
      const int members = static_cast<int>(topology_.members(node).size());
      segments_.push_back(
          members == 1 ? nullptr
                       : SharedSegment::InProcess(SegmentShape::For(members, 0, 4096)).value());
    }
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<test::WatchedRank>(
          segments_[at(topology_.node_of(rank))], topology_, rank, ops_, sets_));
      inquests_.push_back(std::make_unique<Inquest>(topology_, rank, sets_));
    }
  }
  // All but these have submitted it and wait.
  void Lack(const std::set<int>& lacking, int set = 0) {
    for (int rank = 0; rank < topology_.size(); ++rank) {
      if (lacking.contains(rank)) continue;
      ranks_[at(rank)]->Submit("late", now_, set);
      ranks_[at(rank)]->Wait(std::to_string(set) + "/late");
    }
  }
  // Runtimes that do not move carry no letters.
  void Stick(const std::set<int>& stuck) { stuck_ = stuck; }
  void Answer() { silent_since_ = now_; }  // rank 0 does
  void Pass(double seconds) {
    for (const auto until = now_ + milliseconds(static_cast<int>(1000 * seconds)); now_ < until;) {
      now_ += milliseconds{250};
      for (int rank = 0; rank < topology_.size(); ++rank) Look(rank);
    }
  }
  void Write(int from, int to, std::vector<std::byte> bytes) {
    post_.emplace_back(to, Letter{from, std::move(bytes)});
  }
  // By rank: what it said of all nodes.
  std::string Report(int rank) { return std::exchange(reports_[at(rank)], {}); }
  std::set<int> Reporters() const {
    std::set<int> reporters;
    for (int rank = 0; rank < topology_.size(); ++rank)
      if (!reports_[at(rank)].empty()) reporters.insert(rank);
    return reporters;
  }
  // The report of the only rank that said something.
  std::string OnlyReport(int rank) {
    CHECK(Reporters() == std::set<int>{rank});
    return Report(rank);
  }
  int letters() const { return letters_; }
  Inquest& inquest(int rank) { return *inquests_[at(rank)]; }
  Lookout& lookout(int rank) { return ranks_[at(rank)]->lookout(); }
  test::WatchedRank& of(int rank) { return *ranks_[at(rank)]; }
  ProcessSets& sets() { return sets_; }
  Lookout::Clock::time_point now() const { return now_; }
  std::function<bool(const Letter&)> lost = [](const Letter&) { return false; };  // by its sender

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  void Look(int rank) {
    Inquest& inquest = *inquests_[at(rank)];
    const bool moves = !stuck_.contains(rank);
    const auto& segment = segments_[at(topology_.node_of(rank))];
    if (moves && segment) segment->notice(topology_.local_rank(rank)).cycles.fetch_add(1);
    for (auto& [to, letter] : std::exchange(post_, {})) {
      if (to != rank || stuck_.contains(to)) {
        if (to != rank) post_.emplace_back(to, std::move(letter));
        continue;
      }
      inquest.Hear(letter, now_);
    }
    Lookout::Look look = ranks_[at(rank)]->Look(now_);
    const bool owed = rank != 0 && !look.activity.waits.empty();
    if (owed) look.unanswered = std::chrono::duration_cast<milliseconds>(now_ - silent_since_);
    look.asked = inquest.asked();
    look.judge = inquest.judge();
    lookout(rank).See(look);
    inquest.Step(lookout(rank), now_, moves);
    for (Letter& letter : inquest.TakeLetters()) {
      CHECK(topology_.node_of(letter.peer) != topology_.node_of(rank));
      ++letters_;
      const int to = std::exchange(letter.peer, rank);
      if (moves && !lost(letter)) post_.emplace_back(to, std::move(letter));
    }
    if (const auto report = inquest.MustSay()) {
      CHECK(reports_[at(rank)].empty());
      reports_[at(rank)] = *report;
    }
  }

  Topology topology_;
  ProcessSets sets_;
  OpTable ops_;
  std::vector<std::shared_ptr<SharedSegment>> segments_;
  std::vector<std::unique_ptr<test::WatchedRank>> ranks_;
  std::vector<std::unique_ptr<Inquest>> inquests_;
  std::vector<std::pair<int, Letter>> post_;
  std::vector<std::string> reports_;
  std::set<int> stuck_;
  Lookout::Clock::time_point now_{milliseconds{50'000}}, silent_since_ = now_;
  int letters_ = 0;
};

const char* const kBusy =
    "has submitted nothing yet; its main thread is at train.py:57 in load";

TEST_CASE("one rank says who of all nodes lacks the tensor, and the others nothing") {
  Job job(6, 2);
  job.Stick({0});
  job.Lack({4});
  job.Pass(10);
  CHECK(job.letters() == 0);  // within the patience
  job.Pass(4);
  const std::string said = job.OnlyReport(1);
  Has(said, "the runtime of rank 0 has not moved for 10 s: its thread ");
  Has(said, ". Told without it: tensor 'late': submitted by ranks 0, 1, 2, 3, 5 1");
  Has(said, std::string("missing: rank 4 ") + kBusy);
  CHECK(said.find("nothing was heard") == std::string::npos);
  job.Pass(20);
  CHECK(job.Reporters().empty());
  CHECK(job.letters() == 4);  // two nodes, each asked and answering
  for (const int rank : {1, 2, 3, 5}) CHECK(job.inquest(rank).speaks());
}

TEST_CASE("the rank that lacks it shares rank 0's node: it tells what that one does") {
  Job job(4, 2);
  job.Stick({0});
  job.Lack({1});
  job.Pass(17);
  const std::string said = job.OnlyReport(2);
  Has(said, "rank 0, which is on another host, has not answered for 1");
  Has(said, "; the runtime of rank 0 does not move: its thread ");
  Has(said, "submitted by ranks 0, 2, 3 1");
  Has(said, std::string("missing: rank 1 ") + kBusy);
}

TEST_CASE("ranks that are alone on their nodes ask each other") {
  Job job(4, 1);
  job.Stick({0});
  job.Lack({2});
  job.Pass(17);
  const std::string said = job.OnlyReport(1);
  Has(said, "rank 0, which is on another host, has not answered for 1");
  Has(said, "submitted by ranks 1, 3 1");
  Has(said, std::string("missing: rank 2 ") + kBusy + "; nothing was heard of rank 0");
}

TEST_CASE("what a rank did last is told as of the time of the report") {
  Job job(4, 1);
  job.Stick({0});
  job.Lack({2});
  job.Pass(9);
  job.of(2).Submit("first", job.now());
  const auto submitted = job.now();
  while (job.Reporters().empty() && job.now() - submitted < milliseconds{9000}) job.Pass(0.25);
  // But for the time that the letter was on its way.
  const auto age = std::chrono::duration_cast<milliseconds>(job.now() - submitted);
  Has(job.Report(1),
      "it last submitted 'first' " + Seconds(age - milliseconds{250}) + " ago; its main thread");
}

TEST_CASE("the next node stands in for a stand-in that is stuck, too") {
  Job job(4, 2);
  job.Stick({0, 1});
  job.Lack({2});
  job.Pass(13);
  CHECK(job.letters() == 0);
  job.Pass(12);
  const std::string said = job.OnlyReport(3);
  Has(said, "submitted by rank 3 ");
  Has(said, std::string("missing: rank 2 ") + kBusy + "; nothing was heard of ranks 0, 1");
}

TEST_CASE("a node whose first rank is stuck is heard through its others") {
  Job job(6, 3);
  job.Stick({0, 3});
  job.Lack({5});
  job.Pass(19);
  const std::string said = job.OnlyReport(1);
  Has(said, "; the runtime of rank 3 does not move: its thread ");
  Has(said, "submitted by ranks 0, 1, 2, 3, 4 ");
  Has(said, std::string("missing: rank 5 ") + kBusy);
  CHECK(said.find("nothing was heard") == std::string::npos);
}

TEST_CASE("of ranks of two nodes that begin at once the lower one goes on") {
  Job job(4, 1);
  job.Stick({0});
  job.Lack({2});
  job.Pass(14);
  CHECK(job.inquest(1).busy());
  job.Write(3, 1, Encode(NodeQuestion{1, {"0/late", 1}}));
  job.Pass(4);
  CHECK(job.Reporters() == std::set<int>{1});
  Job other(4, 1);
  other.Stick({0});
  other.Lack({1});
  other.Pass(17);
  CHECK(other.inquest(2).busy());
  other.Write(1, 2, Encode(NodeQuestion{1, {"0/late", 1}}));
  other.Pass(0.25);
  CHECK(other.inquest(2).judge() == 1);
  other.Pass(10);
  CHECK(other.Reporters().empty());
}

TEST_CASE("of ranks of one node that begin at once one asks") {
  Job job(8, 4);
  job.Stick({0});
  job.Lack({1, 2, 3});
  job.Pass(17);
  CHECK(job.letters() == 2);
  Has(job.OnlyReport(4), "submitted by ranks 0, 4, 5, 6, 7 ");
}

TEST_CASE("where nobody stands in each rank says what its node knows") {
  Job job(5, 1);
  job.Stick({0});
  job.Lack({0, 1, 2});  // only nodes that come too late in the order wait
  job.Pass(19);
  CHECK(job.inquest(3).speaks());
  CHECK(!job.lookout(3).Missing().empty());
  job.Pass(2);
  CHECK(job.letters() == 0);
  CHECK(!job.inquest(3).speaks());
  const auto said = job.lookout(3).MustSay();
  REQUIRE(said);
  Has(*said, "submitted by rank 3 ");
  Has(*said, "nothing is known here of ranks 0, 1, 2, 4");
}

TEST_CASE("a large job sends some letters a node") {
  const int nodes = 128;
  Job job(2 * nodes, 2);
  job.Stick({0});
  job.Lack({77});
  job.Pass(30);
  CHECK(job.Reporters() == std::set<int>{1});
  CHECK(job.letters() == 2 * (nodes - 1));
  Job deaf(2 * nodes, 2);  // nobody hears anything
  deaf.Stick({0});
  deaf.Lack({77});
  deaf.lost = [](const Letter&) { return true; };
  deaf.Pass(40);
  CHECK(deaf.letters() <= 3 * 2 * nodes);
}

TEST_CASE("only nodes with ranks of the process set are asked, in their order") {
  Job job(6, 2);
  job.sets().Add(1, {3, 4, 5});
  job.Stick({0});
  for (const int rank : {3, 4}) {
    job.of(rank).Submit("late", job.now(), 1);
    job.of(rank).Wait("1/late");
  }
  job.Pass(14);
  CHECK(job.letters() == 2);
  const std::string said = job.OnlyReport(3);
  Has(said, "tensor 'late' (process set 1): submitted by ranks 3, 4 ");
  Has(said, std::string("missing: rank 5 ") + kBusy);
}

TEST_CASE("nothing is said of a rank 0 that answers meanwhile, and the next time it is") {
  Job job(4, 1);
  job.Stick({0});
  job.Lack({2});
  job.Pass(14);
  CHECK(job.inquest(1).busy());
  job.Answer();
  job.Pass(9);
  CHECK(!job.inquest(1).busy());
  CHECK(job.Reporters().empty());
  job.Pass(20);
  CHECK(job.Reporters() == std::set<int>{1});
}

TEST_CASE("letters that are broken, or come too late, change nothing") {
  Job job(4, 2);
  job.Stick({0});
  job.Lack({2});
  job.Write(3, 1, std::vector<std::byte>(5, std::byte{9}));
  NodeAnswer stale{99, {}};
  stale.view.notes[2] = "an old note";
  job.Write(2, 1, Encode(stale));
  job.Pass(10.25);
  CHECK(job.inquest(1).busy());
  job.Write(2, 1, Encode(stale));  // of another question
  job.Pass(4);
  const std::string said = job.Report(1);
  Has(said, std::string("missing: rank 2 ") + kBusy);
  CHECK(said.find("an old note") == std::string::npos);
}

}  // namespace
}  // namespace horon
