// Inquest: finds out between nodes who lacks the tensor that ranks wait for, when rank 0, which
// judges stalls (stall.h), does not answer. One rank stands in for it: it asks one rank of each
// other node for what that node knows (lookout.h), then those directly of which it has heard
// nothing, and says all in one sentence.
//
// The first rank of a node that has waited long enough stands in, the nodes in their order, each a
// while after the one before; who is asked, or sees that another rank of its node was, does not.
// Where nobody stands in each rank says what its node knows. A job of n nodes sends two letters a
// node, and two a rank that its node does not know, times three at most.
//
// Of the watch thread; letters.h carries what it writes. Pure: no clock, no transport.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/letters.h"
#include "runtime/core/lookout.h"
#include "runtime/core/node_letter.h"

namespace horon {

class Inquest {
 public:
  using Clock = Lookout::Clock;
  Inquest(const Topology& topology, int rank, const ProcessSets& sets);

  // Before the lookout looks: what others wrote, what it has to ask its node for (empty: nothing),
  // and what to tell it of judges.
  void Hear(const Letter& letter, Clock::time_point now);
  Wanted asked() const { return asked_.empty() ? Wanted() : asked_.front().letter.question; }
  int judge() const { return judge_; }
  // Afterwards. `moves`: this rank's own runtime, which carries the letters, does.
  void Step(const Lookout& lookout, Clock::time_point now, bool moves);
  std::vector<Letter> TakeLetters() { return std::exchange(letters_, {}); }
  // Once for each time that rank 0 does not answer.
  std::optional<std::string> MustSay() { return std::exchange(report_, std::nullopt); }
  // The lookout is to say nothing: all nodes' knowledge is, or will be, in one report.
  bool speaks() const { return speaks_; }
  bool busy() const { return !asked_.empty() || judging_.has_value(); }

 private:
  using Ranks = std::vector<int>;
  struct Asked {
    int by = -1;
    NodeQuestion letter;
    std::optional<Clock::time_point> since;  // the lookout has it
  };
  struct Judging {
    uint64_t number = 0;
    Wanted question;
    Clock::time_point since;
    bool asked = false;  // the nodes were: not before the others of this one know who asks
    std::set<int> open;  // asked for their nodes, and not heard of
    bool again = false;  // the others were asked directly
    NodeView view;
  };
  void HearQuestion(int by, const NodeQuestion& letter, Clock::time_point now);
  void Learn(NodeView view, Clock::time_point now);
  void Answer(const Lookout& lookout, Clock::time_point now);
  bool MayBegin(const Lookout& lookout, const Ranks& ranks) const;
  void Begin(const Lookout& lookout, Clock::time_point now);
  void AskNodes(const Ranks& ranks, Clock::time_point now);
  void Judge(const Lookout& lookout, const Ranks& ranks, Clock::time_point now);
  void Report(const Lookout& lookout, const Ranks& ranks, Clock::time_point now);
  void KnowJudge(int rank, Clock::time_point now);
  void Ask(int rank);
  std::set<int> NodesOf(const Ranks& ranks) const;
  int Spokesman(int node) const;

  const Topology* topology_;
  int rank_;
  const ProcessSets* sets_;
  uint64_t number_ = 0;
  std::deque<Asked> asked_;
  std::optional<Judging> judging_;
  bool judged_ = false;  // somebody does or did, since rank 0 does not answer
  bool speaks_ = false;
  int judge_ = -1;
  Clock::time_point judge_known_at_;
  std::vector<Letter> letters_;
  std::optional<std::string> report_;
};

}  // namespace horon
