// Mixing what has arrived with the rank's own values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/peer/accumulator.h"
#include "runtime/peer/orders.h"

namespace horon {
namespace {

constexpr double kRounding = 1e-9;

}  // namespace

// self_weight * own + the sum of weight * slot, in the order of the ranks. Where the weights sum to
// 1 it is own + the sum of weight * (slot - own): equal values stay what they are, to the bit.
// Without a sum, what is taken is added to the own values where they lie.
class Mixture {
 public:
  explicit Mixture(const Window& window) : window_(window), own_(window.values()) {}
  Mixture(const Window& window, Accumulator sum, double self_weight, bool convex)
      : window_(window),
        sum_(std::move(sum)),
        own_(window.values()),
        self_weight_(self_weight),
        convex_(convex) {
    if (convex_) sum_->Begin(1, own_);
    empty_ = own_pending_ = !convex_;
  }

  void Take(double weight, const std::byte* values) {
    if (!sum_) {
      CombineInto(window_.shape().dtype, 1, own_, weight, values, window_.values(),
                  window_.count());
      return;
    }
    if (convex_) {
      sum_->AddDifference(weight, values, own_);
    } else {
      AddTerm(weight, values);
    }
  }
  // Of a neighbor that has nothing: its weight goes to this rank.
  void Fold(double weight) {
    if (!convex_) AddTerm(weight, own_);
  }
  // Neighbors below this rank were added; now its own values.
  void TakeOwn() {
    if (std::exchange(own_pending_, false)) AddTerm(self_weight_, own_);
  }
  void Store(std::byte* out) {
    TakeOwn();
    if (sum_) sum_->Store(out);
  }

 private:
  void AddTerm(double weight, const std::byte* values) {
    if (std::exchange(empty_, false)) {
      sum_->Begin(weight, values);
    } else {
      sum_->Add(weight, values);
    }
  }

  const Window& window_;
  std::optional<Accumulator> sum_;
  const std::byte* own_;
  double self_weight_ = 1;
  bool convex_ = false, empty_ = false, own_pending_ = false;
  friend class PeerEngine;
  double share_ = 0;
};

namespace {

// Adds all that has come to the values. Values of 16 bits are rounded once, so these go another
// way.
bool CollectsInPlace(const Order& order) {
  return order.reset && order.output == nullptr && order.self_weight == 1 &&
         SizeOf(order.window->shape().dtype) > 2;
}

}  // namespace

Task PeerEngine::Update(Running& running) {
  Order& order = running.order;
  Window& window = running.window();
  double total = order.self_weight;
  for (const auto& [rank, weight] : order.ranks) total += weight;
  std::optional<Mixture> made;
  if (CollectsInPlace(order)) {
    made.emplace(window);
  } else {
    Result<Accumulator> sum =
        Accumulator::Make(*fabric_->host_pool, window.shape().dtype, window.count());
    HORON_CO_TRY(sum.status());
    made.emplace(window, std::move(sum).value(), order.self_weight,
                 !order.reset && std::abs(total - 1) < kRounding);
  }
  Mixture& mixture = *made;
  mixture.share_ = order.self_weight * window.share;
  for (const auto& [rank, weight] : order.ranks) {
    if (rank > me()) mixture.TakeOwn();
    Task taking = TakeSlot(running, rank, weight, mixture);
    HORON_CO_TRY(co_await taking);
  }
  mixture.Store(order.output != nullptr ? order.output : window.values());
  if (order.output != nullptr) co_return Status::Ok();
  if (order.carry) window.share = mixture.share_;
  Task publishing = Publish(running);
  co_return co_await publishing;
}

Task PeerEngine::TakeSlot(Running& running, int from, double weight, Mixture& mixture) {
  while (!running.Late()) {
    if (TryTakeSlot(running, from, weight, mixture)) co_return Status::Ok();
    NextCycle next(*this);
    co_await Until(next);
  }
  running.Miss(from);
  if (running.order.reset) co_return Status::Ok();  // it is taken the next time
  mixture.Fold(weight);
  mixture.share_ += weight * running.window().share;
  co_return Status::Ok();
}

void PeerEngine::CountTaken(Window& window, int from, bool news) {
  (news ? taken_ : unchanged_).Add();
  int& quiet = window.quiet[from];
  if (!news) {
    ++quiet;
    return;
  }
  const int age = std::min(std::exchange(quiet, 0), 4);
  (*counters_)["window.staleness." + std::to_string(age) + (age == 4 ? "+" : "")].Add();
}

// What a dead neighbor has delivered belongs to the sum that a reset collects; as a value to mix
// with it is stale.
bool PeerEngine::TryTakeSlot(Running& running, int from, double weight, Mixture& mixture) {
  Window& window = running.window();
  const bool looks = running.order.output != nullptr;  // leaves everything as it is
  const Slot slot = window.slot(from);
  const SlotLock lock(slot);
  if (!lock.held()) return false;
  SlotHead& head = slot.head();
  if (!running.order.reset && (head.wiped || (Gone(from) && !looks))) {
    if (!running.Missed(from)) running.Miss(from);
    mixture.Fold(weight);
    mixture.share_ += weight * window.share;
    return true;
  }
  if (head.empty && !running.order.reset) {
    std::memset(slot.values(), 0, static_cast<size_t>(slot.bytes()));
    head.empty = false;
  }
  if (!head.empty) mixture.Take(weight, slot.values());
  mixture.share_ += weight * head.share;
  if (looks) return true;
  CountTaken(window, from, head.deliveries.exchange(0, std::memory_order_relaxed) > 0);
  if (running.order.reset) {
    head.empty = true;
    head.share = 0;
  }
  return true;
}

}  // namespace horon
