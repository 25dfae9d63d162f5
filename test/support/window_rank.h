// What tests do with windows on one thread rank of a World: a tensor with its window, and orders to
// it that block.
#pragma once

#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/c_window.h"
#include "test/support/catch.h"
#include "test/support/world.h"

namespace horon::test {

// For each in turn: one node, everything in shared memory; one rank a node, all messages; two,
// both.
inline int LocalSize() { return GENERATE(0, 1, 2); }

using Ranks = std::vector<std::pair<int, double>>;

// Of float or double.
template <typename T>
class WindowRankOf {
 public:
  // Collective. A window that could not be made says why in `status`.
  WindowRankOf(Rank& me, std::vector<T> begin, std::vector<int> in, std::vector<int> out,
               bool zero = true, const std::string& name = "w", bool gets = true)
      : me_(me), values(std::move(begin)) {
    WindowShape shape;
    shape.name = name;
    shape.dtype = std::is_same_v<T, double> ? DataType::kFloat64 : DataType::kFloat32;
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
  std::vector<T> Look() {
    std::vector<T> sum(values.size());
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
  std::vector<T> values;
  std::shared_ptr<Window> window;
  Status status;
};
using WindowRank = WindowRankOf<float>;

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

// An irregular digraph of four ranks, by sender: degrees differ, and edges that go one way.
inline const std::vector<std::vector<int>> kIrregular = {{1, 2, 3}, {2}, {0, 3}, {0}};
inline std::vector<int> HeardIn(const std::vector<std::vector<int>>& out, int rank) {
  std::vector<int> in;
  for (int from = 0; from < static_cast<int>(out.size()); ++from) {
    for (const int to : out[static_cast<size_t>(from)]) {
      if (to == rank) in.push_back(from);
    }
  }
  return in;
}

// Push-sum on that graph with shares of 1/2 and 1/4 of small whole numbers: nothing is rounded, and
// so the sums of values, and of weights, over the ranks and all that lies in their slots are exact
// at any time. Of a few steps at a time: each adds two bits at most, and a double has 53.
class ExactShares {
 public:
  explicit ExactShares(Rank& me)
      : me_(me),
        to_(kIrregular[static_cast<size_t>(me.rank())]),
        random_(static_cast<unsigned>(me.rank())),
        window_(me, {0, 1}, HeardIn(kIrregular, me.rank()), to_) {
    Refill();
  }
  // At random; nobody waits for anybody. Some parts are given only to who has asked.
  void Act(int steps) {
    const double part = to_.size() == 1 ? 0.5 : 0.25;
    Ranks parts;
    for (const int rank : to_) parts.emplace_back(rank, part);
    const double rest = 1 - part * static_cast<double>(to_.size());
    for (int step = 0; step < steps; ++step) {
      Order order = window_.Make(OrderKind::kAdd, parts, rest, true);
      order.if_asked = random_() % 2 == 0;
      if (random_() % 4 != 0) missed = missed || !window_.Do(std::move(order)).empty();
      if (random_() % 3 != 0) window_.Collect(true);
      if (random_() % 2 != 0) window_.window->Ask(true);
      missed = missed || !window_.status.ok();
    }
  }
  // All ranks together, none of which does anything meanwhile.
  bool SumsHold() {
    Total(me_, "stop", 0);
    const std::vector<double> held = window_.Look();
    double share = window_.window->share;
    for (const int from : window_.window->shape().in)
      share += window_.window->slot(from).head().share;
    const double mass = Total(me_, "mass", held[0]), ones = Total(me_, "ones", held[1]);
    const double weights = Total(me_, "weights", share);
    return mass == 15 && ones == 4 && weights == 4 && window_.values[1] == window_.window->share;
  }
  // All ranks together: as at the start.
  void Refill() {
    window_.Collect(true);
    window_.values = {static_cast<double>(1 << me_.rank()), 1};
    window_.window->share = 1;
    Total(me_, "refilled", 0);
  }
  Status Free() { return window_.Free(); }

  bool missed = false;  // something was given up

 private:
  Rank me_;
  std::vector<int> to_;
  std::mt19937 random_;
  WindowRankOf<double> window_;
};

}  // namespace horon::test
