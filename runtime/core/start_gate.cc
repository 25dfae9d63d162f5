#include "runtime/core/start_gate.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

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
      hold_(fabric, segment_.get()),
      node_(&fabric.topology.members(fabric.topology.node_of(fabric.rank))),
      me_(fabric.topology.local_rank(fabric.rank)),
      messages_(counters["schedule.messages"]),
      carried_(counters["schedule.carried"]) {
  const int nodes = fabric.topology.nodes(), node = fabric.topology.node_of(fabric.rank);
  const auto first_of = [&](int of) { return fabric.topology.members(of)[0]; };
  const int rounds = me_ == 0 ? std::bit_width(static_cast<unsigned>(nodes - 1)) : 0;
  rounds_ = std::vector<Round>(static_cast<size_t>(rounds));
  int distance = 1;
  for (Round& round : rounds_) {
    round.to = first_of((node + distance) % nodes);
    round.from = first_of((node - distance + nodes) % nodes);
    round.begin = distance;
    round.blocks = std::min(distance, nodes - distance);
    const auto bytes = sizeof(Word) + static_cast<size_t>(round.blocks * hold_.limits().whole);
    round.saying.resize(bytes);
    round.hearing.resize(bytes);
    distance *= 2;
  }
  reached_.resize(rounds_.size() + 1);
}

void StartGate::Start(const Locked& batch, Cargo* cargo) {
  HORON_CHECK(segment_ || node_->size() == 1, "a node of several ranks has a segment");
  if (cargo != nullptr) {
    cargo->gate_ = this;
    cargo->number_ = batch.number;
  }
  waiting_.push_back({batch, cargo});
  Publish();
}

// It is the last one that was given a place, or has none.
void StartGate::Withdraw(Cargo& cargo) {
  std::erase_if(waiting_, [&](const Started& started) { return started.cargo == &cargo; });
  if (std::erase(under_way_, &cargo) > 0) --places_;
  std::erase_if(carrying_, [&](const Carried& carried) { return carried.place > places_; });
  cargo.gate_ = nullptr;
}

// What this rank has started, as far as there is a place for it. Others may read of it afterwards.
bool StartGate::Publish() {
  size_t said = 0;
  for (; said < waiting_.size(); ++said) {
    const auto [batch, cargo] = waiting_[said];
    if (!open_ || batch.schedule != started_.schedule) {
      if (closing_) break;
      Begin(batch);
    }
    if (cargo != nullptr) {
      if (under_way_.size() == CargoHold::kPlaces) break;
      if (cargo->phases_ != nullptr) cargo->phases_->Begin();
      cargo->place_ = ++places_;
      hold_.Pack(*cargo);
      if (cargo->phases_ != nullptr) cargo->phases_->Sent();
      under_way_.push_back(cargo);
      if (!rounds_.empty()) carrying_.push_back({batch.number, cargo->place_});
    }
    started_ = batch;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(said));
  if (me_ != 0 && open_ && written_ != started_.number) {
    written_ = started_.number;
    Put(segment_->rank(me_).started, started_);
    segment_->Ring(0, me_, Doorbell::kBackground | Doorbell::kLender);
  }
  return said > 0;
}

void StartGate::Begin(const Locked& batch) {
  if (batch.schedule != started_.schedule) {
    std::fill(reached_.begin(), reached_.end(), uint64_t{0});
    written_ = told_ = all_ = 0;
    for (Round& round : rounds_) {
      round.said = round.heard = 0;
      round.said_place = places_;
    }
    carrying_.clear();
  }
  started_ = {batch.schedule, batch.plan, 0};
  open_ = true;
  closing_ = batch.number <= closed_;
}

Result<bool> StartGate::Advance() {
  if (!open_) return false;
  bool moved = Publish();
  if (me_ != 0) {
    HORON_ASSIGN(const bool passed, ReadFirst());
    moved = moved || passed;
  } else {
    HORON_ASSIGN(const bool came, ReadNode());
    HORON_ASSIGN(const bool heard, AdvanceRounds());
    moved = moved || came || heard;
    all_ = std::max(all_, reached_.back());
    HORON_TRY(AddCargo());
    TellNode();
  }
  moved = Deliver() || moved;
  if (closing_) Settle();
  return moved;
}

Result<bool> StartGate::ReadFirst() {
  if (all_ >= started_.number) return false;
  const std::optional<Locked> said = Get(segment_->rank(0).passed);
  if (!said) return false;
  HORON_ASSIGN(const uint64_t number, NumberIn(started_, *said, (*node_)[0]));
  if (number <= all_) return false;
  all_ = number;
  return true;
}

Result<bool> StartGate::ReadNode() {
  uint64_t& all = reached_.front();
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
  for (Cargo* const cargo : under_way_) {
    if (cargo->number_ > all) break;
    if (!std::exchange(cargo->gathered_, true)) hold_.AddNode(*cargo);
  }
  return true;
}

Result<bool> StartGate::AdvanceRounds() {
  bool moved = false;
  uint64_t last = places_;  // place that all rounds have said
  for (size_t r = 0; r < rounds_.size(); ++r) {
    Round& round = rounds_[r];
    const Tag tag = kFirstTag + static_cast<Tag>(r);
    HORON_ASSIGN(const bool said, Say(round, tag, reached_[r]));
    HORON_ASSIGN(const bool heard, Hear(round, tag));
    moved = moved || said || heard;
    reached_[r + 1] = std::max(reached_[r + 1], std::min(reached_[r], round.heard));
    last = std::min(last, round.said_place);
  }
  std::erase_if(carrying_, [&](const Carried& carried) { return carried.place <= last; });
  return moved;
}

// Of each batch with cargo a word of its own.
StartGate::Word StartGate::Next(const Round& round, uint64_t reached) const {
  for (const Carried& carried : carrying_) {
    if (carried.place <= round.said_place) continue;
    if (carried.number > reached) break;
    return {{started_.schedule, started_.plan, carried.number}, carried.place};
  }
  return {{started_.schedule, started_.plan, reached}, 0};
}

Result<bool> StartGate::Say(Round& round, Tag tag, uint64_t reached) {
  const Word word = Next(round, reached);
  if (word.batch.number <= round.said || !round.send.done) return false;
  HORON_TRY(round.send.status);
  int64_t bytes = kBytes;
  std::memcpy(round.saying.data(), &word, sizeof word);
  if (word.place > 0) {
    bytes = sizeof word;
    const auto blocks = hold_.Blocks(word.place, round.blocks);
    if (!blocks.empty())
      std::memcpy(round.saying.data() + bytes, blocks.data(), blocks.size());
    bytes += static_cast<int64_t>(blocks.size());
    round.said_place = word.place;
  }
  round.said = word.batch.number;
  (word.place > 0 ? carried_ : messages_).Add();
  HORON_TRY(Post(round.send, Transfer::Direction::kSend, round.to, tag,
                 {round.saying.data(), bytes}));
  return true;
}

Result<bool> StartGate::Hear(Round& round, Tag tag) {
  bool heard = false;
  while (!round.receiving || round.receive.done) {
    if (round.receiving) {
      HORON_TRY(round.receive.status);
      Word word;
      const auto came = static_cast<size_t>(round.receive.bytes);
      std::memcpy(&word, round.hearing.data(), std::min(came, sizeof word));
      if (word.batch.schedule > started_.schedule) break;  // this rank will come to it
      round.receiving = false;
      heard = true;
      HORON_TRY(Take(round, word));
    }
    HORON_TRY(Post(round.receive, Transfer::Direction::kReceive, round.from, tag,
                   {round.hearing.data(), static_cast<int64_t>(round.hearing.size())}));
    round.receiving = true;
  }
  return heard;
}

Status StartGate::Take(Round& round, const Word& word) {
  HORON_ASSIGN(const uint64_t number, NumberIn(started_, word.batch, round.from));
  if (word.place > 0 && number > 0) {
    const std::span<const std::byte> all(round.hearing.data(),
                                         static_cast<size_t>(round.receive.bytes));
    HORON_TRY(hold_.Store(word.place, round.begin, round.blocks, all.subspan(sizeof word)));
  }
  round.heard = std::max(round.heard, number);
  return Status::Ok();
}

Status StartGate::Post(Transfer& transfer, Transfer::Direction direction, int peer, Tag tag,
                       Span bytes) {
  transfer.direction = direction;
  transfer.peer = peer;
  transfer.tag = tag;
  // In two pieces: so MPI works on memory of the pool, which it keeps if it must.
  constexpr int64_t kFirst = sizeof(uint64_t);
  transfer.spans = {{bytes.data, kFirst}, {bytes.data + kFirst, bytes.bytes - kFirst}};
  transfer.status = Status::Ok();
  return fabric_->route[static_cast<size_t>(peer)]->Post(transfer);
}

// What has come from all nodes, before the node hears that it has.
Status StartGate::AddCargo() {
  for (Cargo* const cargo : under_way_) {
    if (cargo->number_ > all_) break;
    HORON_TRY(hold_.AddNodes(*cargo));
  }
  return Status::Ok();
}

// Up to which batch all ranks have come, for the others of this node.
void StartGate::TellNode() {
  if (node_->size() == 1 || told_ == all_) return;
  told_ = all_;
  Put(segment_->rank(0).passed, {started_.schedule, started_.plan, all_});
  for (size_t i = 1; i < node_->size(); ++i)
    segment_->Ring(static_cast<int>(i), me_, Doorbell::kBackground | Doorbell::kLender);
}

bool StartGate::Deliver() {
  size_t delivered = 0;
  for (; delivered < under_way_.size(); ++delivered) {
    Cargo& cargo = *under_way_[delivered];
    if (cargo.number_ > all_) break;
    if (cargo.phases_ != nullptr) {
      cargo.phases_->Met();
      cargo.phases_->Arrived();
    }
    hold_.Unpack(cargo);
    cargo.done_ = true;
    cargo.gate_ = nullptr;
  }
  under_way_.erase(under_way_.begin(), under_way_.begin() + static_cast<std::ptrdiff_t>(delivered));
  return delivered > 0;
}

void StartGate::Close(uint64_t last) {
  closed_ = std::max(closed_, last);
  std::erase_if(waiting_, [&](const Started& started) { return started.batch.number > last; });
  closing_ = open_;
  Settle();
}

// Whether others need nothing more of the schedule that is left, nor this rank of them.
bool StartGate::Settled() const {
  return under_way_.empty() &&
         (waiting_.empty() || waiting_.front().batch.schedule != started_.schedule) &&
         std::all_of(rounds_.begin(), rounds_.end(),
                     [&](const Round& round) { return round.said_place >= places_; });
}

// A message that is under way is owed if all have started its batch, or may yet.
bool StartGate::owes() const {
  return std::any_of(rounds_.begin(), rounds_.end(), [&](const Round& round) {
    const bool wanted = round.said <= closed_ || (open_ && !closing_);
    return round.said_place < places_ || (!round.send.done && wanted);
  });
}

// A receive stays posted, unless a word has come already: it may get one of the next schedule.
void StartGate::Settle() {
  if (!closing_ || !Settled()) return;
  open_ = closing_ = false;
  Publish();
}

void StartGate::Stop() {
  for (Round& round : rounds_) {
    round.receive.Cancel();
    round.receiving = false;
    round.said_place = places_;
  }
  for (const Started& started : waiting_)
    if (started.cargo != nullptr) started.cargo->gate_ = nullptr;
  for (Cargo* const cargo : under_way_) cargo->gate_ = nullptr;
  waiting_.clear();
  under_way_.clear();
  open_ = closing_ = false;
}

}  // namespace horon
