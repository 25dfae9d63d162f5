#include "runtime/transport/shm.h"

namespace horon {

ShmTransport::ShmTransport(std::shared_ptr<SharedSegment> segment, std::vector<int> members,
                           int local_rank, std::string name, bool direct, Counter* read)
    : segment_(std::move(segment)),
      members_(std::move(members)),
      local_rank_(local_rank),
      name_(std::move(name)),
      bells_(*segment_, local_rank),
      offered_(segment_->rank(local_rank)) {
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    const int rank = members_[static_cast<size_t>(i)];
    local_of_[rank] = i;
    peers_.push_back(i == local_rank_ ? nullptr
                                      : std::make_unique<ShmPeer>(*segment_, bells_, local_rank_, i,
                                                                  rank, direct, read));
  }
}

ShmTransport::~ShmTransport() { FailAll(Status::Aborted("the transport was closed")); }

void ShmTransport::Flush() { bells_.Flush(); }

void ShmTransport::Abandon() {
  abandoned_ = true;
  failure_ = Status::Ok();
}

bool ShmTransport::Reaches(int peer) const {
  const auto it = local_of_.find(peer);
  return it != local_of_.end() && it->second != local_rank_;
}

Status ShmTransport::Post(Transfer& transfer) {
  HORON_TRY(failure_);
  const auto it = local_of_.find(transfer.peer);
  if (it == local_of_.end() || it->second == local_rank_) {
    return Status::Internal("rank " + std::to_string(transfer.peer) + " is not on this node");
  }
  ShmPeer& peer = *peers_[static_cast<size_t>(it->second)];
  transfer.done = false;
  transfer.status = Status::Ok();
  transfer.bytes = 0;
  transfer.transport = this;
  if (transfer.direction == Transfer::Direction::kSend) {
    peer.PostSend(transfer);
  } else {
    peer.PostReceive(transfer);
  }
  return Status::Ok();
}

Status ShmTransport::CheckDeaths() {
  if (segment_->deaths().load(std::memory_order_acquire) == 0) return Status::Ok();
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    RankWords& words = segment_->rank(i);
    if (words.state.load(std::memory_order_acquire) != static_cast<uint32_t>(RankState::kDead))
      continue;
    if (i == local_rank_)
      return Status::Unavailable("the other ranks have given this one up: " +
                                 std::string(words.death));
    if (!peers_[static_cast<size_t>(i)]->silent()) continue;
    return Status::Unavailable(words.death[0] != '\0'
                                   ? std::string(words.death)
                                   : "rank " + std::to_string(members_[static_cast<size_t>(i)]) +
                                         " died");
  }
  return Status::Ok();
}

void ShmTransport::FailAll(const Status& status) {
  for (auto& peer : peers_) {
    if (peer) peer->FailAll(status);
  }
}

int ShmTransport::Sender(Tag tag) {
  for (size_t i = 0; i < peers_.size(); ++i)
    if (peers_[i] && peers_[i]->HasUnexpected(tag)) return members_[i];
  return -1;
}

// A piece of one peer's messages, so that others come to their turn.
bool ShmTransport::Pull() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t at = (next_pull_ + i) % peers_.size();
    if (!peers_[at] || !peers_[at]->Pull()) continue;
    if (peers_[at]->ProgressSends()) bells_.Ring(static_cast<int>(at));
    next_pull_ = at + 1;
    return true;
  }
  return false;
}

Result<bool> ShmTransport::Progress() {
  HORON_TRY(failure_);
  bool moved = false;
  for (int i = 0; i < static_cast<int>(peers_.size()); ++i) {
    ShmPeer* const peer = peers_[static_cast<size_t>(i)].get();
    if (peer == nullptr) continue;
    bool was_full = false;
    HORON_ASSIGN(const bool received, peer->ProgressReceives(&was_full));
    const bool sent = peer->ProgressSends();
    if (was_full) bells_.RingNow(i);  // it may wait for room
    if (sent) bells_.Ring(i);
    moved = moved || received || sent;
  }
  moved = Pull() || moved;
  bells_.CountRound();
  // After the rings were read, and what was in them taken: what a rank sent before it died counts.
  const Status status = abandoned_ ? Status::Ok() : CheckDeaths();
  if (!status.ok()) {
    failure_ = status;
    FailAll(status);
    return status;
  }
  return moved;
}

void ShmTransport::Cancel(Transfer& transfer) {
  peers_[static_cast<size_t>(local_of_[transfer.peer])]->Cancel(transfer);
}

}  // namespace horon
