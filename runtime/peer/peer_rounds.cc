// A round of mixing with the neighbors that this rank has in it, and nobody else.
//
// Each neighbor's message is either taken there or known to its sender as not taken (RoundSlot), so
// both ends of an edge know what to leave out. Nothing is mixed before all is known.
#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/device/kernels.h"
#include "runtime/device/mix.h"
#include "runtime/peer/orders.h"
#include "runtime/peer/round_slot.h"

namespace horon {
namespace {

const std::byte* BytesOf(const double& number) {
  return reinterpret_cast<const std::byte*>(&number);
}

}  // namespace

class PeerEngine::MixingRound final : public Waitable {
 public:
  MixingRound(PeerEngine& engine, Running& running)
      : engine_(engine),
        running_(running),
        window_(running.window()),
        rounds_(*window_.shape().rounds),
        round_(window_.round),
        next_(round_ + 1) {
    const RoundRow row = rounds_.row(round_);
    self_ = row.self;
    for (const auto& [rank, weight] : row.to) to_.push_back({rank, weight});
    for (const auto& [rank, weight] : row.from) from_.push_back({rank, weight});
  }
  ~MixingRound() override { KeepSent(); }

  // Sends to those that messages reach.
  Status Begin();
  // Settles what can be.
  Status Advance();
  bool pending() const { return Pends(to_) || Pends(from_); }
  // Something can be settled.
  bool Ready() override;
  // Nothing is pending.
  void Mix();

 private:
  struct Edge {
    int rank;
    double weight;
    enum class State { kPending, kDone, kMissed } state = State::kPending;
    std::shared_ptr<Question> asked = nullptr;
  };
  using Edges = std::vector<Edge>;

  static bool Pends(const Edges& edges) {
    return std::any_of(edges.begin(), edges.end(),
                       [](const Edge& edge) { return edge.state == Edge::State::kPending; });
  }
  RoundSlot Mine(int from) const { return RoundSlot(window_.slot(from)); }
  RoundSlot Theirs(int to) const {
    const Window::Near* const near = window_.near(to);
    return RoundSlot(near->memory->slot(near->my_slot));
  }
  void Miss(Edge& edge) {
    edge.state = Edge::State::kMissed;
    if (!running_.Missed(edge.rank)) running_.Miss(edge.rank);
  }
  // Of what was not answered pieces may still go, or come back, when the values have changed.
  void KeepSent() {
    if (copy_) copy_->data();
  }
  void TellNear(Edge& edge);
  Status HearAnswer(Edge& edge);
  Status Hear(Edge& edge);
  Status CheckSkip(int from, int64_t round) const;
  bool CanTell(const Edge& edge) const;
  bool CanHear(const Edge& edge) const;
  bool WaitsNot(int from) const;
  void LeaveOutBothWays();
  double OwnWeight();

  PeerEngine& engine_;
  Running& running_;
  Window& window_;
  const Rounds& rounds_;
  const int64_t round_;
  int64_t next_;
  double self_ = 1;
  Edges to_, from_;
  SharedCopy copy_;  // what is sent; null: nothing is
};

Status PeerEngine::MixingRound::Begin() {
  for (Edge& edge : to_) {
    if (window_.near(edge.rank) != nullptr) continue;
    if (!copy_) {
      HORON_ASSIGN(copy_, engine_.CopyLaterOf(window_));
    }
    edge.asked = engine_.Ask(window_, edge.rank,
                             {.kind = PeerKind::kRound,
                              .weight = edge.weight,
                              .share = window_.share,
                              .tensor_round = round_,
                              .carry = rounds_.push_sum ? 1u : 0u},
                             running_.deadline, copy_);
    edge.asked->counts = rounds_.push_sum;
  }
  return Status::Ok();
}

Status PeerEngine::MixingRound::Advance() {
  for (Edge& edge : to_) {
    if (edge.state != Edge::State::kPending) continue;
    if (!edge.asked) TellNear(edge);
    if (edge.asked && edge.asked->done) HORON_TRY(HearAnswer(edge));
  }
  for (Edge& edge : from_) {
    if (edge.state == Edge::State::kPending) HORON_TRY(Hear(edge));
  }
  return Status::Ok();
}

bool PeerEngine::MixingRound::Ready() {
  const auto pends = [](const Edge& edge) { return edge.state == Edge::State::kPending; };
  for (const Edge& edge : to_) {
    if (pends(edge) && CanTell(edge)) return true;
  }
  for (const Edge& edge : from_) {
    if (pends(edge) && CanHear(edge)) return true;
  }
  return false;
}

// --- giving

bool PeerEngine::MixingRound::CanTell(const Edge& edge) const {
  if (edge.asked) return edge.asked->done;
  return engine_.Gone(edge.rank) || Theirs(edge.rank).round() < 0 || running_.Late();
}

void PeerEngine::MixingRound::TellNear(Edge& edge) {
  if (engine_.Gone(edge.rank)) return Miss(edge);
  const RoundSlot slot = Theirs(edge.rank);
  switch (slot.TryPut(round_, window_.share, window_.values())) {
    case RoundSlot::Put::kDone:
      window_.stuck.erase(edge.rank);
      engine_.CountSent(edge.rank, window_);
      engine_.Ring(edge.rank);
      edge.state = Edge::State::kDone;
      return;
    case RoundSlot::Put::kLate:
      next_ = std::max(next_, slot.next());
      return Miss(edge);
    case RoundSlot::Put::kFull:
      if (!running_.Late() && !window_.stuck.contains(edge.rank)) return;
      window_.stuck.insert(edge.rank);
      return Miss(edge);
  }
}

// Where nobody knows whether it was taken, it counts as given, and comes back if it was not.
Status PeerEngine::MixingRound::HearAnswer(Edge& edge) {
  const Question& asked = *edge.asked;
  if (asked.status.code() == Code::kInvalidArgument) return asked.status;
  if (asked.status.ok() && asked.reply.refused == 0) {
    engine_.CountSent(edge.rank, window_);
    edge.state = Edge::State::kDone;
    return Status::Ok();
  }
  if (asked.status.ok()) next_ = std::max(next_, asked.reply.tensor_round);
  Miss(edge);
  if (asked.open)
    engine_.LeaveOpen(running_, edge.rank, edge.asked, nullptr, PeerEngine::BackFrom(asked));
  return Status::Ok();
}

// --- hearing

// This rank goes on without it.
bool PeerEngine::MixingRound::WaitsNot(int from) const {
  return window_.unheard.contains(from) || engine_.Gone(from) || engine_.Silent(window_, from) ||
         running_.Late();
}

bool PeerEngine::MixingRound::CanHear(const Edge& edge) const {
  return Mine(edge.rank).round() >= 0 || WaitsNot(edge.rank);
}

Status PeerEngine::MixingRound::Hear(Edge& edge) {
  const RoundSlot slot = Mine(edge.rank);
  if (const uint32_t late = slot.TakeLate(); late > 0) {
    engine_.rounds_late_.Add(late);
    window_.unheard.erase(edge.rank);
  }
  if (slot.round() < 0) {
    if (!WaitsNot(edge.rank)) return Status::Ok();
    if (slot.Close(round_ + 1)) {
      if (running_.Late()) window_.unheard.insert(edge.rank);
      Miss(edge);
      return Status::Ok();
    }
  }
  window_.unheard.erase(edge.rank);
  const int64_t there = slot.round();
  if (there == round_) {
    edge.state = Edge::State::kDone;
    return Status::Ok();
  }
  Miss(edge);  // it has given this rank up for a while, and goes on with a later round
  return CheckSkip(edge.rank, there);
}

Status PeerEngine::MixingRound::CheckSkip(int from, int64_t round) const {
  const RoundRow row = rounds_.row(round);
  const bool meets = std::any_of(row.from.begin(), row.from.end(),
                                 [from](const auto& edge) { return edge.first == from; });
  if (meets && round > round_) return Status::Ok();
  return Status::InvalidArgument("rank " + std::to_string(from) + " sent its round " +
                                 std::to_string(round) + " of '" + window_.shape().name +
                                 "' where rank " + std::to_string(engine_.me()) + ", which mixes " +
                                 rounds_.Describe() + ", was in round " + std::to_string(round_));
}

// --- mixing

// A link that goes both ways counts both ways or not at all: both ends see whether their own
// message was taken, so equal weights leave the sum over the ranks as it is.
void PeerEngine::MixingRound::LeaveOutBothWays() {
  for (Edge& heard : from_) {
    const auto told = std::find_if(to_.begin(), to_.end(),
                                   [&](const Edge& edge) { return edge.rank == heard.rank; });
    if (told == to_.end() || told->state == Edge::State::kDone) continue;
    if (heard.state != Edge::State::kDone) continue;
    Mine(heard.rank).Free(round_ + 1);
    engine_.Ring(heard.rank);
    Miss(heard);
  }
}

// With what could not be given, or was not heard.
double PeerEngine::MixingRound::OwnWeight() {
  double own = self_;
  for (const Edge& edge : rounds_.push_sum ? to_ : from_) {
    if (edge.state == Edge::State::kDone) continue;
    engine_.folded_.Add();
    if (!rounds_.push_sum || !running_.LeftOpen(edge.rank)) own += edge.weight;
  }
  return own;
}

void PeerEngine::MixingRound::Mix() {
  if (!rounds_.push_sum) LeaveOutBothWays();
  const double own = OwnWeight();
  std::vector<Heard> values, shares;
  std::vector<double> numbers;
  numbers.reserve(from_.size());  // `shares` points into it
  for (const Edge& edge : from_) {
    if (edge.state != Edge::State::kDone) continue;
    numbers.push_back(Mine(edge.rank).share());
    values.push_back({Mine(edge.rank).values(), edge.weight});
    shares.push_back({BytesOf(numbers.back()), edge.weight});
  }
  KeepSent();
  MixHeard(window_.shape().dtype, 1, own, window_.values(), values, window_.values(),
           window_.count());
  if (rounds_.push_sum) {
    const double share = window_.share;
    double mixed = 0;
    MixHeard(DataType::kFloat64, 1, own, BytesOf(share), shares,
             reinterpret_cast<std::byte*>(&mixed), 1);
    window_.share = mixed;
  }
  for (const Edge& edge : from_) {
    if (edge.state != Edge::State::kDone) continue;
    Mine(edge.rank).Free(round_ + 1);
    engine_.Ring(edge.rank);
  }
  window_.round = next_;
  engine_.rounds_.Add();
}

// --- the order

void PeerEngine::LoadInput(const Order& order) {
  Window& window = *order.window;
  if (order.input != nullptr && window.bytes() > 0)
    std::memcpy(window.values(), order.input, static_cast<size_t>(window.bytes()));
}

// A rank that was left out goes on with the round that the others are at. What it was given for the
// rounds between comes to nothing, but of push-sum, where it is a share: that is added.
void PeerEngine::TakeEarlierRounds(Window& window) {
  const Rounds& rounds = *window.shape().rounds;
  for (const int from : window.shape().in) {
    const RoundSlot slot(window.slot(from));
    while (!slot.Close(window.round) && slot.round() < window.round) {
      rounds_late_.Add();
      for (const auto& [rank, weight] : rounds.row(slot.round()).from) {
        if (rank != from || !rounds.push_sum) continue;
        CombineInto(window.shape().dtype, 1, window.values(), weight, slot.values(),
                    window.values(), window.count());
        window.share = window.share + weight * slot.share();
      }
      slot.Free(window.round);
      Ring(from);
    }
  }
}

Task PeerEngine::MixRound(Running& running) {
  TakeEarlierRounds(running.window());
  MixingRound round(*this, running);
  HORON_CO_TRY(round.Begin());
  for (;;) {
    HORON_CO_TRY(round.Advance());
    if (!round.pending()) break;
    co_await Until(round);
  }
  round.Mix();
  co_return Status::Ok();
}

}  // namespace horon
