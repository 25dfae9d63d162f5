// What tests do with windows on one thread rank of a World: a tensor of floats with its window, and
// orders to it that block.
#pragma once

#include <string>
#include <vector>

#include "runtime/c_window.h"
#include "test/support/catch.h"
#include "test/support/world.h"

namespace horon::test {

// For each in turn: one node, everything in shared memory; one rank a node, all messages; two,
// both.
inline int LocalSize() { return GENERATE(0, 1, 2); }

using Ranks = std::vector<std::pair<int, double>>;

class WindowRank {
 public:
  // Collective. A window that could not be made says why in `status`.
  WindowRank(Rank& me, std::vector<float> begin, std::vector<int> in, std::vector<int> out,
             bool zero = true, const std::string& name = "w", bool gets = true)
      : me_(me), values(std::move(begin)) {
    WindowShape shape;
    shape.name = name;
    shape.shape = {static_cast<int64_t>(values.size())};
    shape.in = std::move(in);
    shape.out = std::move(out);
    shape.gets = gets;
    auto made = MakeWindow(me.runtime(), std::move(shape),
                           {reinterpret_cast<std::byte*>(values.data())}, zero);
    status = made.status();
    if (made.ok()) window = made.value();
  }

  Order Make(OrderKind kind, Ranks ranks, double self_weight = 1, bool carry = false) const {
    Order order;
    order.kind = kind;
    order.window = window;
    order.ranks = std::move(ranks);
    order.self_weight = self_weight;
    order.carry = carry;
    return order;
  }
  // The ranks that were not reached; aborts the test's rank by an error in `status` otherwise.
  std::vector<int64_t> Do(Order order) {
    auto work = StartOrder(me_.runtime(), std::move(order), false);
    status = work.status();
    if (!work.ok()) return {};
    status = me_.Wait(*work.value());
    return status.ok() ? work.value()->outputs()[0].received_splits : std::vector<int64_t>{};
  }
  std::vector<int64_t> Put(Ranks ranks, double self_weight = 1, bool carry = false) {
    return Do(Make(OrderKind::kPut, std::move(ranks), self_weight, carry));
  }
  std::vector<int64_t> Add(Ranks ranks, double self_weight = 1, bool carry = false) {
    return Do(Make(OrderKind::kAdd, std::move(ranks), self_weight, carry));
  }
  std::vector<int64_t> Update(double self_weight, Ranks ranks, bool carry = false) {
    return Do(Make(OrderKind::kUpdate, std::move(ranks), self_weight, carry));
  }
  // Takes all that has been delivered.
  std::vector<int64_t> Collect(bool carry = false) {
    Order order = Make(OrderKind::kUpdate, All(), 1, carry);
    order.reset = true;
    return Do(std::move(order));
  }
  // Own values and all that was delivered, added, which stay as they are.
  std::vector<float> Look() {
    std::vector<float> sum(values.size());
    Order order = Make(OrderKind::kUpdate, All());
    order.output = reinterpret_cast<std::byte*>(sum.data());
    Do(std::move(order));
    return sum;
  }
  Status Free() { return FreeWindow(me_.runtime(), window); }

  uint64_t deliveries(int from) const {
    return window->slot(from).head().deliveries.load(std::memory_order_relaxed);
  }

 private:
  Ranks All() const {
    Ranks all;
    for (const int rank : window->shape().in) all.emplace_back(rank, 1.0);
    return all;
  }
  Rank me_;

 public:
  std::vector<float> values;
  std::shared_ptr<Window> window;
  Status status;
};

// A barrier that carries a sum: what all ranks have together.
inline double Total(Rank& me, const std::string& name, double mine) {
  std::vector<double> sum = {mine};
  Request request;
  request.name = name;
  request.op = "sum";
  request.dtype = DataType::kFloat64;
  request.shape = {1};
  const Status status = me.Run(std::move(request), sum.data(), sum.data());
  return status.ok() ? sum[0] : std::nan("");
}

}  // namespace horon::test
