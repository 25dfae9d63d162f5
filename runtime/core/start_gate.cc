#include "runtime/core/start_gate.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "runtime/base/check.h"

namespace horon {
namespace {

constexpr Tag kFirstTag = kControlTag + 1;  // one for each round

// Whoever reads one of the new words finds the version that says so.
void Put(GateWords& words, const Locked& value) {
  const uint64_t version = words.version.load(std::memory_order_relaxed);
  words.version.store(version + 1, std::memory_order_relaxed);
  words.schedule.store(value.schedule, std::memory_order_release);
  words.plan.store(value.plan, std::memory_order_release);
  words.number.store(value.number, std::memory_order_release);
  words.version.store(version + 2, std::memory_order_release);
}

// None while it is being written.
std::optional<Locked> Get(const GateWords& words) {
  const uint64_t version = words.version.load(std::memory_order_acquire);
  if (version % 2 != 0) return std::nullopt;
  Locked value;
  value.schedule = words.schedule.load(std::memory_order_acquire);
  value.plan = words.plan.load(std::memory_order_acquire);
  value.number = words.number.load(std::memory_order_acquire);
  if (words.version.load(std::memory_order_relaxed) != version) return std::nullopt;
  return value;
}

// How far a rank has come in the same schedule as this one.
Result<uint64_t> NumberIn(const Locked& ours, const Locked& theirs, int rank) {
  if (theirs.schedule != ours.schedule) return uint64_t{0};
  if (theirs.plan == ours.plan) return theirs.number;
  return Status::Internal("rank " + std::to_string(rank) +
                          " runs another schedule of tensors than this rank");
}

}  // namespace

StartGate::StartGate(const Fabric& fabric, std::shared_ptr<SharedSegment> segment,
                     Counters& counters)
    : fabric_(&fabric),
      segment_(std::move(segment)),
      node_(&fabric.topology.members(fabric.topology.node_of(fabric.rank))),
      me_(fabric.topology.local_rank(fabric.rank)),
      messages_(counters["schedule.messages"]) {
  const int nodes = fabric.topology.nodes(), node = fabric.topology.node_of(fabric.rank);
  const auto first_of = [&](int of) { return fabric.topology.members(of)[0]; };
  const int rounds = me_ == 0 ? std::bit_width(static_cast<unsigned>(nodes - 1)) : 0;
  rounds_ = std::vector<Round>(static_cast<size_t>(rounds));
  int distance = 1;
  for (Round& round : rounds_) {
    round.to = first_of((node + distance) % nodes);
    round.from = first_of((node - distance + nodes) % nodes);
    distance *= 2;
  }
  reached_.resize(rounds_.size() + 1);
}

void StartGate::Start(const Locked& batch) {
  HORON_CHECK(segment_ || node_->size() == 1, "a node of several ranks has a segment");
  if (batch.schedule != started_.schedule) {
    std::fill(reached_.begin(), reached_.end(), Locked{batch.schedule, batch.plan, 0});
    written_ = told_ = 0;
  }
  started_ = batch;
  open_ = true;
}

Result<bool> StartGate::Advance() {
  if (!open_) return false;
  bool moved = Write();
  if (me_ != 0) {
    HORON_ASSIGN(const bool passed, ReadFirst());
    return moved || passed;
  }
  HORON_ASSIGN(const bool came, ReadNode());
  HORON_ASSIGN(const bool heard, AdvanceRounds());
  passed_ = std::max(passed_, reached_.back().number);
  TellNode();
  return moved || came || heard;
}

// What this rank has started, for the first one of its node.
bool StartGate::Write() {
  if (me_ == 0 || written_ == started_.number) return false;
  written_ = started_.number;
  Put(segment_->rank(me_).started, started_);
  segment_->rank(0).bell.Ring(Doorbell::kBackground | Doorbell::kLender);
  return true;
}

Result<bool> StartGate::ReadFirst() {
  if (passed_ >= started_.number) return false;
  const std::optional<Locked> said = Get(segment_->rank(0).passed);
  if (!said) return false;
  HORON_ASSIGN(const uint64_t number, NumberIn(started_, *said, (*node_)[0]));
  if (number <= passed_) return false;
  passed_ = number;
  return true;
}

Result<bool> StartGate::ReadNode() {
  uint64_t& all = reached_.front().number;
  if (all >= started_.number) return false;
  uint64_t least = started_.number;
  for (size_t i = 1; i < node_->size(); ++i) {
    const std::optional<Locked> said = Get(segment_->rank(static_cast<int>(i)).started);
    if (!said) return false;
    HORON_ASSIGN(const uint64_t number, NumberIn(started_, *said, (*node_)[i]));
    least = std::min(least, number);
  }
  if (least <= all) return false;
  all = least;
  return true;
}

Result<bool> StartGate::AdvanceRounds() {
  bool moved = false;
  for (size_t r = 0; r < rounds_.size(); ++r) {
    Round& round = rounds_[r];
    const Tag tag = kFirstTag + static_cast<Tag>(r);
    HORON_ASSIGN(const bool said, Say(round, tag, reached_[r]));
    HORON_ASSIGN(const bool heard, Hear(round, tag));
    moved = moved || said || heard;
    HORON_ASSIGN(const uint64_t number, NumberIn(reached_[r], round.heard, round.from));
    reached_[r + 1].number = std::max(reached_[r + 1].number, std::min(reached_[r].number, number));
  }
  return moved;
}

// Up to which batch all ranks have come, for the others of this node.
void StartGate::TellNode() {
  if (node_->size() == 1 || told_ == reached_.back().number) return;
  told_ = reached_.back().number;
  Put(segment_->rank(0).passed, reached_.back());
  for (size_t i = 1; i < node_->size(); ++i)
    segment_->rank(static_cast<int>(i)).bell.Ring(Doorbell::kBackground | Doorbell::kLender);
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
