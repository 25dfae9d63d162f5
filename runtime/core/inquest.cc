#include "runtime/core/inquest.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

namespace horon {
namespace {

using std::chrono::milliseconds;

// A question is answered when the program has said where it is, and the node's others have answered
// and are known to move or not; then, or after kRelayTime with what is known.
constexpr milliseconds kOwnTime{250}, kRelayTime{2200};
// So long nodes have to answer before their ranks are asked, and all have in the end.
constexpr milliseconds kNodeTime{2750}, kLeastTime{5750};
// Nodes that may stand in, one after another within a patience.
constexpr int kStandIns = 3;
constexpr size_t kMostAsked = 4, kLongestKey = 4096;
// A rank that does not wait itself tells its node of a judge for so long: until the job goes on, or
// rank 0 is given up.
constexpr int kPatiencesKnown = 2;

// Whether all who lack the tensor have said where they are.
bool SayWhere(const NodeView& view) {
  return std::all_of(view.ranks.begin(), view.ranks.end(), [](const auto& one) {
    return !one.second || !one.second->doing.empty();
  });
}

// What the ranks did last, told later by so much.
void Age(NodeView& view, Inquest::Clock::duration time) {
  for (auto& [rank, activity] : view.ranks)
    if (activity) activity->last_ms += std::chrono::duration_cast<milliseconds>(time).count();
}

}  // namespace

Inquest::Inquest(const Topology& topology, int rank, const ProcessSets& sets)
    : topology_(&topology), rank_(rank), sets_(&sets) {}

std::set<int> Inquest::NodesOf(const Ranks& ranks) const {
  std::set<int> nodes;
  for (const int rank : ranks) nodes.insert(topology_->node_of(rank));
  return nodes;
}

// Rank 0 is the one that does not answer.
int Inquest::Spokesman(int node) const {
  const std::vector<int>& members = topology_->members(node);
  return members[0] == 0 && members.size() > 1 ? members[1] : members[0];
}

void Inquest::KnowJudge(int rank, Clock::time_point now) {
  judge_ = rank;
  judge_known_at_ = now;
}

void Inquest::Hear(const Letter& letter, Clock::time_point now) {
  const auto decoded = DecodeNodeLetter(letter.bytes, topology_->size());
  if (!decoded.ok()) return;
  if (const auto* const question = std::get_if<NodeQuestion>(&decoded.value())) {
    HearQuestion(letter.peer, *question, now);
    return;
  }
  const auto& answer = std::get<NodeAnswer>(decoded.value());
  if (!judging_ || answer.number != judging_->number) return;
  judging_->open.erase(letter.peer);
  Learn(answer.view, now);
}

// As it was when this one began, so that what is told at once is of one time.
void Inquest::Learn(NodeView view, Clock::time_point now) {
  Age(view, judging_->since - now);
  judging_->view.Add(view);
}

// Of two that have begun at once the lower one goes on; the other one hears of it likewise.
void Inquest::HearQuestion(int by, const NodeQuestion& letter, Clock::time_point now) {
  if (judging_ && by > rank_) return;
  judging_.reset();
  judged_ = true;
  KnowJudge(by, now);
  if (asked_.size() < kMostAsked) asked_.push_back({by, letter, std::nullopt});
}

void Inquest::Step(const Lookout& lookout, Clock::time_point now, bool moves) {
  Answer(lookout, now);
  const milliseconds patience = lookout.patience();
  if (judge_ >= 0 && now - judge_known_at_ >= kPatiencesKnown * patience) judge_ = -1;
  if (lookout.overdue() < patience) {
    judging_.reset();
    report_.reset();
    if (judge_ == rank_) judge_ = -1;
    judged_ = judge_ >= 0;  // one to whom rank 0 owes an answer for longer
    speaks_ = false;
    return;
  }
  if (const int other = lookout.judge(); other >= 0 && other != rank_) {
    if (judging_ && other < rank_) judging_.reset();
    judged_ = judged_ || !judging_;
  }
  const Wanted wanted = lookout.question();
  const auto ranks = sets_->Find(std::atoi(wanted.key.c_str()));
  const bool between = !wanted.key.empty() && wanted.key.size() <= kLongestKey && ranks &&
                       NodesOf(*ranks).size() > 1;
  if (judging_ && (!between || wanted != judging_->question)) judging_.reset();
  if (judging_) {
    if (!judging_->asked) AskNodes(*ranks, now);
    Judge(lookout, *ranks, now);
  } else if (between && !judged_ && moves && MayBegin(lookout, *ranks)) {
    Begin(lookout, now);
  }
  speaks_ = judged_ || judging_ || (topology_->nodes() > 1 && lookout.overdue() < 2 * patience);
}

// --- a node that is asked

void Inquest::Answer(const Lookout& lookout, Clock::time_point now) {
  if (asked_.empty()) return;
  Asked& one = asked_.front();
  if (!one.since) one.since = now;
  const milliseconds since = std::chrono::duration_cast<milliseconds>(now - *one.since);
  NodeView view = lookout.View();
  const bool whole = SayWhere(view) && lookout.complete() && lookout.sure();
  if (since < kRelayTime && (since < kOwnTime || !whole)) return;
  letters_.push_back({one.by, Encode(NodeAnswer{one.letter.number, std::move(view)})});
  asked_.pop_front();
}

// --- a rank that stands in

bool Inquest::MayBegin(const Lookout& lookout, const Ranks& ranks) const {
  const std::set<int> nodes = NodesOf(ranks);
  const auto mine = nodes.find(topology_->node_of(rank_));
  const auto turn = std::distance(nodes.begin(), mine);
  return lookout.complete() && turn < kStandIns &&
         lookout.overdue() >= lookout.patience() + turn * lookout.patience() / kStandIns;
}

void Inquest::Ask(int rank) {
  letters_.push_back({rank, Encode(NodeQuestion{judging_->number, judging_->question})});
}

void Inquest::Begin(const Lookout& lookout, Clock::time_point now) {
  judging_ = Judging();
  judging_->number = ++number_;
  judging_->question = lookout.question();
  KnowJudge(rank_, now);
}

void Inquest::AskNodes(const Ranks& ranks, Clock::time_point now) {
  judging_->asked = true;
  judging_->since = now;
  for (const int node : NodesOf(ranks)) {
    if (node == topology_->node_of(rank_)) continue;
    judging_->open.insert(Spokesman(node));
    Ask(Spokesman(node));
  }
}

void Inquest::Judge(const Lookout& lookout, const Ranks& ranks, Clock::time_point now) {
  KnowJudge(rank_, now);
  NodeView own = lookout.View();
  own.notes.clear();  // Trouble() has them
  Learn(std::move(own), now);
  const auto since = now - judging_->since;
  const bool late = since >= kNodeTime;
  Ranks unknown;
  for (const int rank : ranks)
    if (!judging_->view.ranks.contains(rank)) unknown.push_back(rank);
  if (!judging_->again && (judging_->open.empty() || late)) {
    judging_->again = true;
    for (const int rank : unknown) {
      const bool here = topology_->node_of(rank) == topology_->node_of(rank_);
      if (!here && rank != Spokesman(topology_->node_of(rank))) Ask(rank);
    }
  }
  const bool all = (unknown.empty() && (late || SayWhere(judging_->view))) ||
                   (unknown == Ranks{0} && late);
  if (all || since >= std::max(lookout.patience(), kLeastTime)) Report(lookout, ranks, now);
}

void Inquest::Report(const Lookout& lookout, const Ranks& ranks, Clock::time_point now) {
  Age(judging_->view, now - judging_->since);
  std::string text = lookout.Trouble();
  for (const auto& [rank, note] : judging_->view.notes) text += "; " + note;
  text += ". Told without it: " + Describe(judging_->view, judging_->question.key, ranks,
                                           lookout.wanted_since(), now, "nothing was heard of");
  report_ = std::move(text);
  judged_ = true;
  judging_.reset();
}

}  // namespace horon
