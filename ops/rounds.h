// Rounds of gossip: they belong to the tensor, and are counted call by call, on every rank.
//
// Used by ops that mix in rounds: in Run, and in Skip, where this rank has joined and the others go
// on. Holder of the baton.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/op/op.h"

namespace horon {

struct RoundsTaken final : TensorState {
  int64_t completed = 0;
};

// Which round this call is of each tensor of the bucket, the first one if it is `count` of them.
// Request::round: 0 is the next one, t > 0 is round t, and -1 is round 0 once more. Once a call.
inline std::vector<int64_t> TakeRounds(Stage& stage, int64_t count = 1) {
  std::vector<int64_t> taken;
  for (size_t i = 0; i < stage.segments().size(); ++i) {
    auto& state = stage.State(i);
    if (!state) state = std::make_unique<RoundsTaken>();
    int64_t& completed = static_cast<RoundsTaken&>(*state).completed;
    const int64_t given = stage.segments()[i].request->round;
    if (given != 0) completed = std::max<int64_t>(given, 0);
    taken.push_back(std::exchange(completed, completed + count));
  }
  return taken;
}

}  // namespace horon
