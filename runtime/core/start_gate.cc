#include "runtime/core/start_gate.h"

#include <algorithm>
#include <string>

namespace horon {
namespace {

constexpr Tag kFirstTag = kControlTag + 1;  // one for each round

}  // namespace

StartGate::StartGate(const Fabric& fabric, Counters& counters)
    : fabric_(&fabric), messages_(counters["schedule.messages"]) {
  const int size = fabric.topology.size(), me = fabric.rank;
  int rounds = 0;
  while ((1 << rounds) < size) ++rounds;
  rounds_ = std::vector<Round>(static_cast<size_t>(rounds));
  for (int r = 0; r < rounds; ++r) {
    rounds_[static_cast<size_t>(r)].to = (me + (1 << r)) % size;
    rounds_[static_cast<size_t>(r)].from = (me - (1 << r) + size) % size;
  }
  reached_.resize(rounds_.size() + 1);
}

void StartGate::Start(const Locked& batch) {
  if (batch.schedule != reached_.front().schedule)
    std::fill(reached_.begin(), reached_.end(), Locked{batch.schedule, batch.plan, 0});
  reached_.front().number = batch.number;
  open_ = true;
}

Result<bool> StartGate::Advance() {
  if (!open_) return false;
  bool moved = false;
  for (size_t r = 0; r < rounds_.size(); ++r) {
    Round& round = rounds_[r];
    const Tag tag = kFirstTag + static_cast<Tag>(r);
    HORON_ASSIGN(const bool said, Say(round, tag, reached_[r]));
    HORON_ASSIGN(const bool heard, Hear(round, tag));
    moved = moved || said || heard;
    if (round.heard.schedule != reached_[r].schedule) continue;
    if (round.heard.plan != reached_[r].plan)
      return Status::Internal("rank " + std::to_string(round.from) +
                              " runs another schedule of tensors than this rank");
    reached_[r + 1].number = std::min(reached_[r].number, round.heard.number);
  }
  passed_ = std::max(passed_, reached_.back().number);
  return moved;
}

Result<bool> StartGate::Say(Round& round, Tag tag, const Locked& reached) {
  const bool news = reached.number > 0 &&
                    (round.said.schedule != reached.schedule || round.said.number < reached.number);
  if (!news || !round.send.done) return false;
  HORON_TRY(round.send.status);
  round.said = round.saying = reached;
  messages_.Add();
  HORON_TRY(Post(round.send, Transfer::Direction::kSend, round.to, tag, round.saying));
  return true;
}

Result<bool> StartGate::Hear(Round& round, Tag tag) {
  bool heard = false;
  while (!round.receiving || round.receive.done) {
    if (std::exchange(round.receiving, false)) {
      HORON_TRY(round.receive.status);
      round.heard = round.hearing;
      heard = true;
    }
    HORON_TRY(Post(round.receive, Transfer::Direction::kReceive, round.from, tag, round.hearing));
    round.receiving = true;
  }
  return heard;
}

Status StartGate::Post(Transfer& transfer, Transfer::Direction direction, int peer, Tag tag,
                       Locked& word) {
  transfer.direction = direction;
  transfer.peer = peer;
  transfer.tag = tag;
  transfer.spans = {{reinterpret_cast<std::byte*>(&word), kBytes}};
  transfer.status = Status::Ok();
  return fabric_->route[static_cast<size_t>(peer)]->Post(transfer);
}

void StartGate::Close(uint64_t last) {
  passed_ = std::max(passed_, last);
  for (Round& round : rounds_) {
    if (std::exchange(round.receiving, false)) round.receive.Cancel();
  }
  open_ = false;
}

}  // namespace horon
