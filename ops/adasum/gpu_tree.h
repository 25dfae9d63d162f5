// GpuTree: Adasum of a bucket whose tensors lie on GPUs: the tree of tree.h, by recursive halving.
//
// The bucket is packed into one block (gpu_block.h). Going up, two ranks exchange the halves that
// they do not keep; the dots of what they hold are computed by one launch, told to all ranks that
// hold pieces of the same two vectors, weighed on the device and used there: inside a group no host
// waits for anything. Between nodes halves and dots travel as messages (GpuStage::Exchange). Then
// the pieces come back the same way, inside a node by one allgather.
//
// Nodes of equally many ranks; each node's first `owners` ranks go on between the nodes, on a part
// of every tensor each. Sent per rank: as ByHalving and OverNodes in paths.h, and 24 bytes a tensor
// for each rank, at each level. Memory: the block, and half of it (all of it where ranks fold).
//
// Lives in Op::RunOnGpus's frame. All near ranks take part in every exchange, those that are folded
// with nothing to say.
#pragma once

#include <vector>

#include "ops/adasum/gpu_block.h"
#include "ops/adasum/paths.h"
#include "ops/adasum/tree.h"
#include "runtime/op/gpu_stage.h"

namespace horon::adasum {

class GpuTree {
 public:
  // `over_ranks`: the tree is the one over all ranks, not that of each node and then over nodes.
  GpuTree(GpuStage& stage, LocalOp local, ZeroPolicy zeros, bool over_ranks);
  Task Run();

 private:
  // One meeting as this rank takes part in it; without a peer it only keeps step with the others.
  struct Step {
    int peer = -1;  // a rank of comm()
    Meeting meeting;
    bool taken() const { return peer >= 0; }
  };
  using Steps = std::vector<Step>;
  // Who holds pieces of the two vectors of a meeting, each as many: blocks of near ranks, and as
  // many of these as the bits of `across` say, of which the ones with a place like mine are told.
  struct Holders {
    std::vector<int> near;    // ranks of comm(), me among them
    int64_t me = 0;           // my place among them
    std::vector<int> across;  // peers, of which the k-th is in the other half of 2^(k+1) blocks
    int64_t block = 0;        // my block's place among the 2^across.size() of them
  };
  struct Stretch {  // pieces
    int64_t begin = 0, count = 0;
  };

  // gpu_tree_plan.cc: who meets whom.
  void PlanOverRanks();
  void PlanOverNodes();
  void PlanInside();
  void PlanBetween(const std::vector<int64_t>& leaves);
  Step StepOf(const Meeting& meeting, const std::vector<int>& ranks) const;
  std::vector<int> Column() const;
  Holders Alone() const;
  Holders Inside(int level) const;
  Holders Between(int levels) const;

  Status Reserve();
  Status Pack();
  Status Unpack();
  Task Up();
  Task Down();
  Task GatherInside();
  Task Fold(Step step, Holders holders);
  Task Unfold(Step step);
  Task Halve(Step step, Holders holders);
  Task Rejoin(Step step);
  Task Tell(Holders holders, int64_t rows, bool taken);
  Status Dot(const Step& step, int64_t at);
  Status Combine(const Step& step);
  std::vector<Pair> PairsOf(const Step& step) const;
  Task Trade(int peer, Span give, Span take);
  Span At(Stretch run) const {
    return {block_ + run.begin * pieces_.piece_bytes(), run.count * pieces_.piece_bytes()};
  }
  Dots* Row(int64_t row) const { return dots_ + row * pieces_.tensors(); }

  GpuStage& stage_;
  Communicator& comm_;
  LocalOp local_op_;
  ZeroPolicy zeros_;
  // The layout: nodes are what groups join.
  std::vector<std::vector<int>> nodes_;
  int node_ = 0, local_ = 0, width_ = 1;  // ranks of a node
  int owners_ = 1, inside_levels_ = 0, between_levels_ = 0;
  Steps first_fold_;  // of whole vectors, before everything else
  Steps inside_fold_, inside_, between_fold_, between_;
  GpuBlock pieces_;
  // Memory of the device.
  std::byte *block_ = nullptr, *scratch_ = nullptr;
  Dots* dots_ = nullptr;
  Coefficients* weights_ = nullptr;
  Stretch held_;
  bool gathered_in_order_ = true;  // else part k of the block is that of the k-th owner
};

}  // namespace horon::adasum
