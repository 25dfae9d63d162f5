// The tree whose leaves are the gradients of n participants: who combines with whom, in which
// order. It is part of Adasum's meaning, because Ada(a, Ada(b, c)) is not Ada(Ada(a, b), c). Pure.
//
// With p the largest power of two up to n: first participant i + p folds into i, for i < n - p;
// then (0,1), (2,3), ... combine, then pairs of pairs, up to one. The first operand is the subtree
// of the lower participants. Participants are ranks, or whole nodes that stand for several leaves.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/recycler.h"

namespace horon::adasum {

// One combination that a participant takes part in.
struct Meeting {
  int peer = 0;        // the participant met
  bool first = false;  // whether what I bring is the first operand
  double leaves_a = 1, leaves_b = 1;
  int level = 0;  // 0 for the fold and the first pairs, then 1, 2, ...
};

class Tree {
 public:
  // leaves[i]: how many gradients participant i stands for. `me` is one of them.
  Tree(std::span<const int64_t> leaves, int me);

  // Meetings before the tree proper: at most one, the fold.
  const RecycledVector<Meeting>& fold() const { return fold_; }
  // Folded into another: takes no part in the levels and gets the result at the end.
  bool folded() const { return !fold_.empty() && !fold_[0].first; }
  // Bottom up; the peer at level j is `me` with bit j flipped. Empty when folded.
  const RecycledVector<Meeting>& levels() const { return levels_; }

 private:
  RecycledVector<Meeting> fold_, levels_;
};

}  // namespace horon::adasum
