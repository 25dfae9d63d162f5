// Hierarchy for staged ops: reduce inside the node, the op's step between nodes, gather inside the
// node. The op says what its step does with one contiguous part; packing, scaling, the two stages
// inside the node and unpacking are here. Called from Op::Run, on the holder of the baton.
#pragma once

#include <vector>

#include "runtime/op/op.h"

namespace horon {

// For the tensors `which` (indices of stage.segments()) as one block: the node's ranks reduce
// prescale * input with `kind` (averaged over the node's ranks if `average`), `between` runs on
// every part between the nodes, everybody's output gets postscale * result.
Task OverNodes(Stage& stage, std::vector<size_t> which, ReduceKind kind, bool average,
               NodeStep between);

}  // namespace horon
