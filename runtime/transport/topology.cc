#include "runtime/transport/topology.h"

#include <map>

namespace horon {

Topology Topology::FromNodes(std::vector<int> node_of) {
  Topology topology;
  std::map<int, int> renumbered;  // given node -> number by lowest rank
  for (size_t rank = 0; rank < node_of.size(); ++rank) {
    const auto [it, added] =
        renumbered.emplace(node_of[rank], static_cast<int>(topology.members_.size()));
    if (added) topology.members_.emplace_back();
    auto& members = topology.members_[static_cast<size_t>(it->second)];
    topology.node_of_.push_back(it->second);
    topology.local_rank_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
  return topology;
}

Topology Topology::Blocks(int size, int local_size) {
  std::vector<int> node_of;
  for (int rank = 0; rank < size; ++rank) node_of.push_back(rank / local_size);
  return FromNodes(std::move(node_of));
}

int Topology::cross_rank(int rank) const {
  int before = 0;
  for (int node = 0; node < node_of(rank); ++node) {
    if (static_cast<int>(members(node).size()) > local_rank(rank)) ++before;
  }
  return before;
}

int Topology::cross_size(int rank) const {
  int count = 0;
  for (const auto& node : members_) {
    if (static_cast<int>(node.size()) > local_rank(rank)) ++count;
  }
  return count;
}

bool Topology::homogeneous() const {
  for (const auto& node : members_) {
    if (node.size() != members_[0].size()) return false;
  }
  return true;
}

}  // namespace horon
