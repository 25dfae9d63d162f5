// One round of mixing on GPUs: the tensors that take part in it lie in one block, so that a peer
// gets one message a slice and all tensors are mixed by one launch.
//
// The weighted sum is that of the host but for rounding: products are rounded and added left to
// right, own value first. Sent per rank: S for each peer. Memory: the tensors, and a slice for each
// peer heard. Called from the gossip ops' RunOnGpus, by all ranks alike.
#pragma once

#include <vector>

#include "ops/gossip/graph.h"
#include "runtime/op/gpu_stage.h"

namespace horon::gossip {

// Tensors that mix by one row.
struct GpuRound {
  Row row;
  std::vector<size_t> which;  // segments of the bucket
};

// Whether peers are few enough for one launch, whatever the graph.
inline bool MixesOnGpus(const Communicator& comm) {
  return static_cast<size_t>(comm.size()) <= Stream::kMostInputs;
}

// out = factor * (self * own + the sum of weight * other), of every tensor.
Task MixOnGpus(GpuStage& stage, std::vector<GpuRound> rounds, double factor);

}  // namespace horon::gossip
