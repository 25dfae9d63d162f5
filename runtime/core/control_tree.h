// ControlTree: carries reports up to rank 0 and decisions down to everybody. On one node every rank
// has a channel to rank 0. Between nodes only one rank of each talks, its leader (the lowest): it
// bundles what its node reports and hands decisions on. Never blocks. Part of the negotiator;
// holder of the baton only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/core/control_channel.h"
#include "runtime/core/wire.h"
#include "runtime/transport/topology.h"

namespace horon {

class ControlTree {
 public:
  // `control[r]` reaches rank r, at least this rank's parent and children.
  ControlTree(int rank, const Topology& topology, const std::vector<Transport*>& control,
              Counters& counters);

  // Rank 0's node has rank 0 itself as leader.
  static int LeaderOf(const Topology& topology, int rank) {
    return topology.members(topology.node_of(rank))[0];
  }
  bool leads(int rank) const { return topology_.nodes() > 1 && LeaderOf(topology_, rank) == rank; }
  const std::vector<int>& NodeOf(int rank) const {
    return topology_.members(topology_.node_of(rank));
  }

  void SendReport(WireBytes report);               // not on rank 0
  Status SendDecision(const WireBytes& decision);  // rank 0 only
  // Moves messages. kUnavailable when a neighbour is gone, kInternal when what it says is broken.
  Status Advance();
  // Of that: what comes from rank 0. Also what it sent before it, or another neighbour, was lost.
  Status HearParent();
  // Whether anything came or went on since the last call.
  bool moved() { return std::exchange(moved_, false); }
  bool sending() const;
  std::optional<RankReport> NextReport();   // on rank 0: whose, and what
  std::optional<WireBytes> NextDecision();  // elsewhere
  // This rank has left the job: it reports nothing more, and gets nothing after what was sent.
  void Gone(int rank);
  bool gone(int rank) const { return gone_[static_cast<size_t>(rank)]; }

 private:
  struct Child {
    int rank;
    ControlChannel channel;
    bool gone = false;
  };
  int ParentOf(int rank) const;
  Status HearChildren();
  Status SendDown(const WireBytes& decision);
  bool NoMore(int rank) const;

  int rank_;
  Topology topology_;
  std::unique_ptr<ControlChannel> parent_;  // null on rank 0
  std::vector<std::unique_ptr<Child>> children_;
  Bundle bundle_;  // to go up with the next Advance
  std::deque<RankReport, Recycling<RankReport>> reports_;
  std::deque<WireBytes, Recycling<WireBytes>> decisions_;
  std::vector<bool> gone_;  // by rank
  bool moved_ = false;
};

}  // namespace horon
