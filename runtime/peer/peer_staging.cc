// Orders to a window whose tensor lies on a GPU: taken in, worked on at the host, given back.
#include "runtime/peer/orders.h"
#include "runtime/peer/staged_values.h"

namespace horon {
namespace {

bool Locks(const Order& order) {
  return order.kind == OrderKind::kLock || order.kind == OrderKind::kUnlock;
}

bool ChangesValues(const Order& order) {
  switch (order.kind) {
    case OrderKind::kPut:
    case OrderKind::kAdd:
      return order.self_weight != 1;
    case OrderKind::kUpdate:
      return order.output == nullptr;
    default:
      return order.kind == OrderKind::kRound;
  }
}

}  // namespace

// One order of a window after the other.
class PeerEngine::Turn final : public Waitable {
 public:
  explicit Turn(StagedValues& values) : values_(values), ticket_(values.TakeTicket()) {}
  ~Turn() override {
    if (Ready()) values_.Pass();
  }
  bool Ready() override { return values_.serving() == ticket_; }

 private:
  StagedValues& values_;
  uint64_t ticket_;
};

// Asked again in every cycle: the device wakes nobody.
class PeerEngine::Reached final : public Waitable {
 public:
  Reached(PeerEngine& engine, Event& event) : engine_(engine), event_(event) {
    engine_.looks_again_ = true;
  }
  bool Ready() override {
    const Result<bool> done = event_.Done();
    status_ = done.status();
    if (!done.ok() || done.value()) return true;
    engine_.looks_again_ = true;
    return false;
  }
  const Status& status() const { return status_; }  // once ready

 private:
  PeerEngine& engine_;
  Event& event_;
  Status status_;
};

Task PeerEngine::RunStaged(Running& running) {
  Order& order = running.order;
  if (Locks(order)) {
    Task task = RunOnHost(running);
    co_return co_await task;
  }
  StagedValues& values = *running.window().staged();
  running.deadline = Clock::time_point::max();  // of the other ranks none is waited for yet
  Turn turn(values);
  co_await Until(turn);
  // A round's input becomes the values.
  const std::byte* const input = order.kind == OrderKind::kRound ? order.input : nullptr;
  const Result<SharedEvent> there = values.TakeIn(order.ready.get(), input);
  HORON_CO_TRY(there.status());
  order.input = nullptr;
  Reached reached(*this, *there.value());
  co_await Until(reached);
  HORON_CO_TRY(reached.status());
  running.deadline = Clock::now() + patience_;
  const bool changes = ChangesValues(order);
  std::byte* const output = order.kind == OrderKind::kUpdate ? order.output : nullptr;
  if (output != nullptr) {
    const Result<std::byte*> room = values.Output();
    HORON_CO_TRY(room.status());
    order.output = room.value();
  }
  Task task = RunOnHost(running);
  const Status status = co_await task;
  if (changes || running.paid) {  // also where it failed: what was owed is in the values
    Result<SharedEvent> back = values.GiveBack();
    HORON_CO_TRY(back.status());
    order.written = std::move(back).value();
  }
  if (output != nullptr && status.ok()) {
    Result<SharedEvent> sent = values.SendOutput(output);
    HORON_CO_TRY(sent.status());
    order.written = std::move(sent).value();
  }
  co_return status;
}

}  // namespace horon
