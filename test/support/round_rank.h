// What tests do with a tensor that one thread rank of a World mixes in rounds with its neighbors.
#pragma once

#include <string>
#include <vector>

#include "runtime/c_rounds.h"
#include "runtime/c_window.h"
#include "test/support/reference.h"
#include "test/support/world.h"

namespace horon::test {

struct RoundsOf {
  std::string graph = "gossip";
  bool push_sum = false;
  int64_t first = 0;
  DataType dtype = DataType::kFloat32;
  std::string name = "r";
};

class RoundRank {
 public:
  // Collective. A window that could not be made says why in `status`.
  RoundRank(Rank& me, const RoundsOf& of, const Values& begin)
      : me_(me), dtype_(of.dtype), bytes(Encode(of.dtype, begin)) {
    WindowShape shape;
    shape.name = of.name;
    shape.dtype = of.dtype;
    shape.shape = {static_cast<int64_t>(begin.size())};
    status = SetRounds(of.graph, me.size(), me.rank(), of.first, of.push_sum, &shape);
    if (!status.ok()) return;
    auto made = MakeWindow(me.runtime(), std::move(shape), {bytes.data()}, true);
    status = made.status();
    if (made.ok()) window = made.value();
  }

  Order Make(OrderKind kind = OrderKind::kRound) const {
    Order order;
    order.kind = kind;
    order.window = window;
    return order;
  }
  // Null, and why in `status`, if it cannot be.
  std::shared_ptr<Work> Start() {
    if (!window) return nullptr;
    auto work = StartOrder(me_.runtime(), Make(), true);
    status = work.status();
    return work.ok() ? work.value() : nullptr;
  }
  // The ranks that were left out.
  std::vector<int64_t> Wait(Work& work) {
    status = me_.Wait(work);
    return status.ok() ? work.outputs()[0].received_splits : std::vector<int64_t>{};
  }
  std::vector<int64_t> Mix() {
    const auto work = Start();
    return work ? Wait(*work) : std::vector<int64_t>{};
  }
  void Do(OrderKind kind) {
    const auto work = StartOrder(me_.runtime(), Make(kind), true);
    status = work.ok() ? me_.Wait(*work.value()) : work.status();
  }
  Status Free() { return FreeWindow(me_.runtime(), window); }

  Values values() const { return Decode(dtype_, bytes); }
  double share() const { return window->share; }
  int64_t round() const { return window->round; }
  int64_t counted(const std::string& name) { return me_.runtime().counters()[name].value(); }

 private:
  Rank me_;
  DataType dtype_;

 public:
  Bytes bytes;
  std::shared_ptr<Window> window;
  Status status;
};

}  // namespace horon::test
