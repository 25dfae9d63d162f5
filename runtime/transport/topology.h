// Topology: who is near whom. Pure data, known by every rank after init, the same on all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"

namespace horon {

class Topology {
 public:
  // node_of[r] is the node of global rank r; nodes are numbered by their lowest rank.
  static Topology FromNodes(std::vector<int> node_of);
  static Topology OneNode(int size) {
    return FromNodes(std::vector<int>(static_cast<size_t>(size), 0));
  }
  // Blocks of `local_size` consecutive ranks; the last may be smaller.
  static Topology Blocks(int size, int local_size);

  int size() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(members_.size()); }
  int node_of(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& members(int node) const {
    return members_[static_cast<size_t>(node)];
  }  // ascending
  int local_rank(int rank) const { return local_rank_[static_cast<size_t>(rank)]; }
  int local_size(int rank) const { return static_cast<int>(members(node_of(rank)).size()); }
  // Among the ranks of equal local rank, ordered by node.
  int cross_rank(int rank) const;
  int cross_size(int rank) const;
  bool homogeneous() const;  // all nodes hold equally many ranks

 private:
  std::vector<int> node_of_, local_rank_;
  std::vector<std::vector<int>> members_;
};

}  // namespace horon
