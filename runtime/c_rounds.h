// Rounds on a gossip graph for a window: where the runtime, which knows no op, gets its graphs
// from. User threads.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/peer/window.h"

namespace horon {

// In shape->rounds, with shape->in and shape->out, from a spec such as "gossip:graph=ring".
// kInvalidArgument: the graph is none of `size` participants, or loses the sum (push-sum needs
// columns that sum to 1, other rounds rows).
Status SetRounds(const std::string& graph, int size, int rank, int64_t first, bool push_sum,
                 WindowShape* shape);

}  // namespace horon
