// The ways a bucket can take through the tree: the same tree, and so the same result, with other
// messages. Each begins with every rank's values and ends with the result in everybody's outputs.
// n ranks, S bytes; `members`: ranks of the communicator, by participant, me among them.
#pragma once

#include "ops/adasum/share.h"

namespace horon::adasum {

// Recursive vector halving with distance doubling. At each level a rank halves what it holds, so it
// moves less from level to level. Sent: 2 S (p-1)/p, p the largest power of two up to n, and
// 2 log2(p) messages beside log2(p) (log2(p)+1) / 2 of 32 bytes a tensor. If n > p, the rank folded
// into another sends S and gets S.
// Source: Rabenseifner, Optimization of Collective Reduction Operations, ICCS 2004; for Adasum:
// Maleki et al., MLSys 2021.
Task ByHalving(Share& share, RecycledVector<int> members);

// The same halving over the node's lane, which has to be this bucket's, by all the ranks of the
// communicator. Nothing is sent but the inner products. If n > p, the pair of a fold halves its
// vectors, too, and who is folded reads the result where the first pairs show it to each other.
Task ByLane(Share& share, RecycledVector<int> members);

// Recursive doubling: at each level both ranks send all they hold and combine it all. Sent:
// S log2(p). For small buckets. Scratch: S.
Task ByDoubling(Share& share, RecycledVector<int> members);

// Binary tree: at each level half of the ranks that are left hand over what they hold; the last one
// broadcasts. Sent: at most 3/2 S log2(p).
Task ByTree(Share& share, RecycledVector<int> members);

// What happens inside a node before Adasum runs between the nodes.
enum class LocalOp { kAdasum, kAverage, kSum };

// Inside each node `local`, between nodes Adasum by halving on the slices that the node's ranks
// own, then the node gathers. Any number of ranks on any node. A node stands for as many leaves as
// it has ranks (one, if it sums). Adasum inside the node is the tree over its ranks; with `tree` it
// is taken ByTree, so that one rank a node does all between nodes. Sent between nodes, by each of
// w owners: 2 S/w (H-1)/H for H nodes.
Task OverNodes(Share& share, LocalOp local, bool tree);

}  // namespace horon::adasum
