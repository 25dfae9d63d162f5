#include "runtime/core/lookout.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace horon {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
// A watch thread looks every 5 s at least: by then it has answered, or its process is stopped.
constexpr milliseconds kAnswerTime{6000}, kStale{8000};
// Who has not moved for so long, though rung for, is no sleeper.
constexpr milliseconds kStuck{1500};

int64_t Ms(Lookout::Clock::time_point at) {
  return duration_cast<milliseconds>(at.time_since_epoch()).count();
}

std::string Whole(milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

// "<process set>/<name>"
std::pair<int32_t, std::string> Parted(const std::string& key) {
  return {std::atoi(key.c_str()), key.substr(key.find('/') + 1)};
}

}  // namespace

Lookout::Lookout(std::shared_ptr<SharedSegment> segment, const Topology& topology, int rank,
                 Registry& registry, const ProcessSets& sets, milliseconds silence)
    : segment_(std::move(segment)),
      topology_(&topology),
      rank_(rank),
      me_(topology.local_rank(rank)),
      members_(topology.members(topology.node_of(rank))),
      registry_(&registry),
      sets_(&sets),
      patience_(Standstill::Patience(silence)),
      peers_(members_.size(), Peer{Standstill(silence), {}}) {}

// Not of thread ranks: these never say that they have joined.
bool Lookout::InJob(int local) const {
  const auto state =
      static_cast<RankState>(segment_->rank(local).state.load(std::memory_order_acquire));
  return state != RankState::kLeft && state != RankState::kDead;
}

void Lookout::See(const Look& look) {
  look_ = look;
  Want(look);
  mine_.at_ms = Ms(look.now);
  mine_.activity = look.activity;
  mine_.judge = look.judge;
  mine_.answers.assign(members_.size(), 0);
  asked_ = !look.asked.key.empty() && !Submitted(look.asked);
  if (!segment_) return;
  bool awaited = !look.activity.waits.empty();
  for (int local = 0; local < static_cast<int>(members_.size()); ++local) {
    if (local == me_) continue;
    SeePeer(local);
    const auto& notice = peers_[static_cast<size_t>(local)].notice;
    if (!notice || notice->wanted.empty() || !InJob(local)) continue;
    awaited = true;
    mine_.answers[static_cast<size_t>(local)] = Answer(*notice);
  }
  mine_.where = awaited ? KernelsView(look.holder) : "";
  Post(segment_->notice(me_), mine_);
}

// What it has waited for at two looks, and has not submitted anew in between; or is asked for.
void Lookout::Want(const Look& look) {
  if (!look.asked.key.empty()) {
    if (question() != look.asked) wanted_at_ = wanted_since_ = look.now;
    mine_.wanted = look.asked.key;
    mine_.calls = look.asked.calls;
    settled_ = true;
    return;
  }
  const std::string now = look.activity.waits.empty() ? "" : look.activity.waits[0];
  const auto [set, name] = Parted(now);
  const SharedRegistration what = now.empty() ? nullptr : registry_->Find(set, name);
  const int64_t calls = what ? what->calls() : 0;
  settled_ = now.empty() || (now == waited_ && calls == waited_calls_);
  const bool still = what && settled_;
  if (still && (mine_.wanted != now || mine_.calls != calls)) {
    wanted_at_ = wanted_since_ = look.now;
    if (look.activity.last == now) wanted_since_ -= milliseconds{look.activity.last_ms};
  }
  mine_.wanted = still ? now : "";
  mine_.calls = still ? calls : 0;
  waited_ = now;
  waited_calls_ = calls;
}

void Lookout::SeePeer(int local) {
  Peer& peer = peers_[static_cast<size_t>(local)];
  NoticeWords& words = segment_->notice(local);
  if (auto notice = ReadNotice(words)) peer.notice = std::move(notice);
  const bool awaited = waits() && InJob(local);
  const bool unmoved =
      peer.standstill.See({words.cycles.load(std::memory_order_relaxed), awaited, look_.now});
  if (unmoved) segment_->rank(local).bell.Ring();  // who sleeps runs a cycle then
}

// 0: it is none of this rank's business.
uint64_t Lookout::Answer(const Notice& asker) {
  const auto [set, name] = Parted(asker.wanted);
  const auto ranks = sets_->Find(set);
  if (!ranks || std::find(ranks->begin(), ranks->end(), rank_) == ranks->end()) return 0;
  const bool submitted = Submitted({asker.wanted, asker.calls});
  asked_ = asked_ || !submitted;
  return AnswerTo(asker, submitted);
}

bool Lookout::Submitted(const Wanted& question) const {
  const auto [set, name] = Parted(question.key);
  const SharedRegistration what = registry_->Find(set, name);
  return what && (what->pending() || what->calls() >= question.calls);
}

bool Lookout::complete() const {
  if (!settled_) return false;  // what it waits for was not told to the others yet
  if (mine_.wanted.empty() || !segment_ || look_.now - wanted_at_ >= kAnswerTime) return true;
  const auto ranks = sets_->Find(Parted(mine_.wanted).first);
  for (int local = 0; ranks && local < static_cast<int>(peers_.size()); ++local) {
    const bool member =
        std::binary_search(ranks->begin(), ranks->end(), members_[static_cast<size_t>(local)]);
    if (local != me_ && member && InJob(local) && (AnswerOf(local) | 1) != AnswerTo(mine_, true))
      return false;
  }
  return true;
}

std::optional<std::string> Lookout::MustSay() {
  if (!complete()) return std::nullopt;
  bool stand = false, news = false;
  for (int local = 0; local < static_cast<int>(peers_.size()); ++local) {
    if (!Stands(local)) continue;
    stand = true;
    news = peers_[static_cast<size_t>(local)].standstill.MustSay() || news;
  }
  if (!silent()) said_silent_ = false;
  if (!stand && silent()) news = !std::exchange(said_silent_, true);
  if (!news) return std::nullopt;
  const std::string missing = Missing();
  return Trouble() + (missing.empty() ? "" : ". Told without it: " + missing);
}

std::string Lookout::Trouble() const {
  std::string standing;
  for (int local = 0; local < static_cast<int>(peers_.size()); ++local) {
    if (Stands(local)) standing += (standing.empty() ? "" : "; ") + Standing(local);
  }
  // Through the node's first rank: if that is stuck, nobody knows of rank 0.
  if (!silent() || Stands(0)) return standing;
  return standing + (standing.empty() ? "" : "; ") +
         "rank 0, which is on another host, has not answered for " + Whole(look_.unanswered);
}

milliseconds Lookout::overdue() const {
  if (rank_ == 0) return milliseconds{0};
  return Here(0) ? peers_[0].standstill.standing_for() : look_.unanswered;
}

bool Lookout::sure() const {
  for (size_t local = 0; local < peers_.size(); ++local) {
    const milliseconds standing = peers_[local].standstill.standing_for();
    if (static_cast<int>(local) != me_ && standing.count() > 0 && standing < kStuck) return false;
  }
  return true;
}

int Lookout::judge() const {
  int judge = -1;
  for (int local = 0; local < static_cast<int>(peers_.size()); ++local) {
    if (local == me_ || Stale(local) || Stands(local)) continue;
    const int known = peers_[static_cast<size_t>(local)].notice->judge;
    if (known >= 0) judge = judge < 0 ? known : std::min(judge, known);
  }
  return judge;
}

bool Lookout::Stands(int local) const {
  return local != me_ && peers_[static_cast<size_t>(local)].standstill.standing_for() >= patience_;
}

bool Lookout::Stale(int local) const {
  const auto& notice = peers_[static_cast<size_t>(local)].notice;
  return !notice || Ms(look_.now) - notice->at_ms >= kStale.count();
}

std::string Lookout::Stuck(int local) const {
  if (Stale(local)) {
    return ", and its watch thread says nothing: the process is stopped (SIGSTOP, a debugger)"
           ", or gets no processor time";
  }
  const std::string& where = peers_[static_cast<size_t>(local)].notice->where;
  return where.empty() ? "" : ": its " + where;
}

std::string Lookout::Standing(int local) const {
  return "the runtime of rank " + std::to_string(members_[static_cast<size_t>(local)]) +
         " has not moved for " +
         Whole(peers_[static_cast<size_t>(local)].standstill.standing_for()) + Stuck(local);
}

// 0: none.
uint64_t Lookout::AnswerOf(int local) const {
  const auto& notice = peers_[static_cast<size_t>(local)].notice;
  const auto me = static_cast<size_t>(me_);
  return notice && notice->answers.size() > me ? notice->answers[me] : 0;
}

NodeView Lookout::View() const {
  NodeView view;
  const auto ranks = sets_->Find(Parted(mine_.wanted).first);
  if (mine_.wanted.empty() || !ranks) return view;
  for (const int rank : *ranks) {
    if (!Here(rank)) continue;
    const int local = topology_->local_rank(rank);
    const uint64_t answer =
        rank == rank_ ? AnswerTo(mine_, Submitted(question())) : AnswerOf(local);
    if (answer == AnswerTo(mine_, true)) {
      view.ranks[rank];
    } else if (rank == rank_) {
      view.ranks[rank] = look_.activity;
    } else if (answer == AnswerTo(mine_, false)) {
      const Notice& notice = *peers_[static_cast<size_t>(local)].notice;
      view.ranks[rank] = notice.activity;
      view.ranks[rank]->last_ms += Ms(look_.now) - notice.at_ms;
    }
  }
  for (int local = 0; local < static_cast<int>(peers_.size()); ++local) {
    const int rank = members_[static_cast<size_t>(local)];
    if (local == me_ || peers_[static_cast<size_t>(local)].standstill.standing_for() < kStuck)
      continue;
    view.notes[rank] =
        "the runtime of rank " + std::to_string(rank) + " does not move" + Stuck(local);
  }
  return view;
}

std::string Lookout::Missing() const {
  const auto ranks = sets_->Find(Parted(mine_.wanted).first);
  if (mine_.wanted.empty() || !ranks) return "";
  return Describe(View(), mine_.wanted, *ranks, wanted_since_, look_.now,
                  "nothing is known here of");
}

}  // namespace horon
