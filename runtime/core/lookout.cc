#include "runtime/core/lookout.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "runtime/core/stall.h"

namespace horon {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
// A watch thread looks every 5 s at least: by then it has answered, or its process is stopped.
constexpr milliseconds kAnswerTime{6000}, kStale{8000};

int64_t Ms(Lookout::Clock::time_point at) {
  return duration_cast<milliseconds>(at.time_since_epoch()).count();
}

std::string Whole(milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

// "<process set>/<name>"
std::pair<int32_t, std::string> Parted(const std::string& key) {
  return {std::atoi(key.c_str()), key.substr(key.find('/') + 1)};
}

std::string Listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
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
  mine_.answers.assign(members_.size(), 0);
  asked_ = false;
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

// What it has waited for at two looks, and has not submitted anew in between.
void Lookout::Want(const Look& look) {
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
  const SharedRegistration what = registry_->Find(set, name);
  const bool submitted = what && (what->pending() || what->calls() >= asker.calls);
  asked_ = asked_ || !submitted;
  return AnswerTo(asker, submitted);
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
  std::string standing;
  bool news = false;
  for (int local = 0; local < static_cast<int>(peers_.size()); ++local) {
    Peer& peer = peers_[static_cast<size_t>(local)];
    if (local == me_ || peer.standstill.standing_for() < patience_) continue;
    news = peer.standstill.MustSay() || news;
    standing += (standing.empty() ? "" : "; ") + Standing(local);
  }
  // Here it stands still, or it answers.
  const bool silent = look_.unanswered >= patience_ && !Here(0);
  if (!silent) said_silent_ = false;
  if (standing.empty() && silent) {
    news = !std::exchange(said_silent_, true);
    standing = Silent();
  }
  if (!news) return std::nullopt;
  const std::string missing = Missing();
  return standing + (missing.empty() ? "" : ". Told without it: " + missing);
}

std::string Lookout::Standing(int local) const {
  const Peer& peer = peers_[static_cast<size_t>(local)];
  std::string text = "the runtime of rank " + std::to_string(members_[static_cast<size_t>(local)]) +
                     " has not moved for " + Whole(peer.standstill.standing_for());
  const bool stale = !peer.notice || Ms(look_.now) - peer.notice->at_ms >= kStale.count();
  if (stale) {
    return text +
           ", and its watch thread says nothing: the process is stopped (SIGSTOP, a debugger)"
           ", or gets no processor time";
  }
  return peer.notice->where.empty() ? text : text + ": its " + peer.notice->where;
}

std::string Lookout::Silent() const {
  return "rank 0, which is on another host, has not answered for " + Whole(look_.unanswered);
}

// 0: none.
uint64_t Lookout::AnswerOf(int local) const {
  const auto& notice = peers_[static_cast<size_t>(local)].notice;
  const auto me = static_cast<size_t>(me_);
  return notice && notice->answers.size() > me ? notice->answers[me] : 0;
}

std::string Lookout::Missing() const {
  if (mine_.wanted.empty()) return "";
  const auto [set, name] = Parted(mine_.wanted);
  const auto ranks = sets_->Find(set);
  if (!ranks) return "";
  PendingTensor tensor{mine_.wanted, {}, {}, wanted_since_};
  std::vector<std::optional<Activity>> activity(static_cast<size_t>(topology_->size()));
  std::vector<int> unknown;
  for (const int rank : *ranks) {
    const int local = topology_->local_rank(rank);
    const uint64_t answer = Here(rank) ? AnswerOf(local) : 0;
    if (rank == rank_ || answer == AnswerTo(mine_, true)) {
      tensor.ready.push_back(rank);
    } else if (answer == AnswerTo(mine_, false)) {
      tensor.missing.push_back(rank);
      const Notice& notice = *peers_[static_cast<size_t>(local)].notice;
      Activity& one = activity[static_cast<size_t>(rank)].emplace(notice.activity);
      one.last_ms += Ms(look_.now) - notice.at_ms;
    } else {
      unknown.push_back(rank);
    }
  }
  return DescribePending(tensor, activity, look_.now) +
         (unknown.empty() ? "" : "; nothing is known here of " + Listed(unknown));
}

}  // namespace horon
