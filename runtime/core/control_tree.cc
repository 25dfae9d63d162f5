#include "runtime/core/control_tree.h"

#include <algorithm>

namespace horon {

ControlTree::ControlTree(int rank, const Topology& topology, const std::vector<Transport*>& control,
                         Counters& counters)
    : rank_(rank), topology_(topology), gone_(static_cast<size_t>(topology.size())) {
  for (int r = 1; r < topology.size(); ++r) {
    Transport& way = *control[static_cast<size_t>(r == rank ? ParentOf(r) : r)];
    if (r == rank) {
      parent_ = std::make_unique<ControlChannel>(way, ParentOf(r), counters);
    } else if (ParentOf(r) == rank) {
      children_.emplace_back(new Child{r, ControlChannel(way, r, counters)});
    }
  }
}

int ControlTree::ParentOf(int rank) const {
  const int leader = LeaderOf(topology_, rank);
  return topology_.nodes() > 1 && leader != rank ? leader : 0;
}

void ControlTree::SendReport(WireBytes report) { bundle_.Add(rank_, report); }

Status ControlTree::SendDecision(const WireBytes& decision) { return SendDown(decision); }

// Whether nobody is left behind this child: a leader still carries what is for its node.
bool ControlTree::NoMore(int rank) const {
  if (!leads(rank)) return true;
  const auto& members = NodeOf(rank);
  return std::all_of(members.begin(), members.end(),
                     [&](int r) { return gone_[static_cast<size_t>(r)]; });
}

Status ControlTree::SendDown(const WireBytes& decision) {
  Status failed = Status::Ok();  // one that is lost keeps none of the others from hearing it
  for (auto& child : children_) {
    if (child->gone) continue;
    child->channel.Send(decision);
    const Status sent = child->channel.Advance();
    if (failed.ok()) failed = sent;
  }
  return failed;
}

void ControlTree::Gone(int rank) {
  gone_[static_cast<size_t>(rank)] = true;
  for (auto& child : children_) {
    if (!gone_[static_cast<size_t>(child->rank)] || !NoMore(child->rank) || child->gone) continue;
    child->gone = true;
    child->channel.CloseReceiving();
  }
}

Status ControlTree::HearChildren() {
  for (auto& child : children_) {
    HORON_TRY(child->channel.Advance());
    while (auto message = child->channel.Receive()) {
      moved_ = true;
      HORON_ASSIGN(auto reports, DecodeBundle(*message, topology_.size()));
      for (auto& [rank, bytes] : reports) {
        if (ParentOf(rank) != child->rank && rank != child->rank)
          return Status::Internal("rank " + std::to_string(child->rank) +
                                  " reported in the name of rank " + std::to_string(rank));
        if (rank_ == 0) {
          reports_.emplace_back(rank, std::move(bytes));
        } else {
          bundle_.Add(rank, bytes);
        }
      }
    }
  }
  return Status::Ok();
}

Status ControlTree::HearParent() {
  if (!parent_) return Status::Ok();
  const Status status = parent_->Advance();
  while (auto message = parent_->Receive()) {
    moved_ = true;
    decisions_.push_back(std::move(*message));
    HORON_TRY(SendDown(decisions_.back()));
  }
  return status;
}

Status ControlTree::Advance() {
  HORON_TRY(HearChildren());
  if (parent_ && !bundle_.empty()) {
    parent_->Send(bundle_.Take());
    moved_ = true;
  }
  HORON_TRY(HearParent());
  for (auto& child : children_) HORON_TRY(child->channel.Advance());  // what has come for them
  return Status::Ok();
}

bool ControlTree::sending() const {
  if (!bundle_.empty() || (parent_ && parent_->sending())) return true;
  return std::any_of(children_.begin(), children_.end(),
                     [](const auto& child) { return child->channel.sending(); });
}

std::optional<RankReport> ControlTree::NextReport() {
  if (reports_.empty()) return std::nullopt;
  auto next = std::move(reports_.front());
  reports_.pop_front();
  return next;
}

std::optional<WireBytes> ControlTree::NextDecision() {
  if (decisions_.empty()) return std::nullopt;
  WireBytes next = std::move(decisions_.front());
  decisions_.pop_front();
  return next;
}

}  // namespace horon
