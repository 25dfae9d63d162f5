// Mixing on GPUs: the tensors that mix alike lie in one block, so that a peer gets one message a
// slice and all tensors are mixed by one launch.
//
// The weighted sum is that of the host but for rounding: products are rounded and added left to
// right, own value first. Sent per rank and round: S for each peer; between nodes its part of S,
// after a reduce-scatter inside the node and before an allgather there. Memory: the tensors, and a
// slice for each peer heard, 16 MiB in all. Called from the gossip ops' RunOnGpus, by all ranks
// alike.
#pragma once

#include <vector>

#include "ops/gossip/graph.h"
#include "runtime/op/gpu_stage.h"

namespace horon::gossip {

// Tensors that mix by the same rows, one round after the other. Neighbors are ranks of comm(), or
// its nodes. All ranks have the same tensors in the same order here.
struct GpuRounds {
  std::vector<Row> rows;
  std::vector<size_t> which;  // segments of the bucket
};

// Bytes of a bucket at most: on a GPU it fits into a block of the threshold (128 MiB) with the room
// for what is heard.
int64_t MostFused(int64_t threshold, DeviceKind where);

// Whether peers are few enough for one launch, whatever the graph; between nodes a group has to be
// that of one node. `everyone`: as in Op::on_gpus.
bool MixesOnGpus(const Communicator& comm, bool between_nodes, bool everyone);

// The first round: out = factor * (self * own + the sum of weight * other), of every tensor; the
// others likewise without the factor.
Task MixOnGpus(GpuStage& stage, std::vector<GpuRounds> mixes, double factor);

// The same between nodes, whose ranks add prescale * input first, or average it; out is postscale *
// the result.
Task MixNodesOnGpus(GpuStage& stage, std::vector<GpuRounds> mixes, bool average);

}  // namespace horon::gossip
