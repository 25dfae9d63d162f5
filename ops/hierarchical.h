// Hierarchy for staged ops: reduce inside the node, the op's step between nodes, gather inside the
// node. The op says what its step does with one contiguous part; slices of several tensors are
// packed and unpacked here. Called from Op::Run, on the holder of the baton.
#pragma once

#include <vector>

#include "runtime/op/op.h"

namespace horon {

// For the tensors `which` (indices of stage.segments()) as one row, in slices that are in flight at
// once (runtime/op/slices.h): the node's ranks add their inputs (averaged over the node's ranks if
// `average`), `between` runs on every part between the nodes, several at once, and everybody's
// output gets prescale * postscale * result: `between` is linear. Tensors are written to slice by
// slice.
Task OverNodes(Stage& stage, std::vector<size_t> which, bool average, NodeStep between);

}  // namespace horon
