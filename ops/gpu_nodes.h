// Of ops that move rows of GPU tensors between nodes with equally many ranks each: what goes to all
// ranks of a node goes once, to the one that has this rank's place there, and on over the node's
// group.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/op/gpu_stage.h"

namespace horon {

struct NodePlaces {
  explicit NodePlaces(const Communicator& comm)
      : nodes(comm.nodes()), node(NodeOf(comm, comm.rank())), local(LocalOf(comm, comm.rank())) {}
  static size_t NodeOf(const Communicator& comm, int rank) {
    return static_cast<size_t>(comm.node_of(rank));
  }
  static size_t LocalOf(const Communicator& comm, int rank) {
    const std::vector<int>& members = comm.nodes()[NodeOf(comm, rank)];
    return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  }
  size_t near() const { return nodes[node].size(); }
  // Of the same place in another node.
  size_t Peer(size_t of_node) const { return static_cast<size_t>(nodes[of_node][local]); }

  const std::vector<std::vector<int>>& nodes;
  size_t node, local;
};

// Where a bucket's tensors lie one behind the other: the output of the only one, or the block.
inline Result<std::byte*> OneBlock(GpuStage& stage, int64_t bytes) {
  if (stage.segments().size() == 1) return stage.segments()[0].output;
  return stage.Block(bytes);
}

}  // namespace horon
