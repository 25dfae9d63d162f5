// One participant's mixing: the exchange that feeds the arithmetic (runtime/device/mix.h).
//
// Called from the gossip ops' Run, on the holder of the baton.
#pragma once

#include <vector>

#include "ops/gossip/graph.h"
#include "runtime/device/mix.h"
#include "runtime/op/op.h"
#include "runtime/transport/communicator.h"

namespace horon::gossip {

// A tensor, or a part of one, as one participant mixes it.
struct Part {
  Row row;  // neighbors are ranks of the communicator
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may be the input
  int64_t count = 0;            // elements
};

struct Mixing {
  DataType dtype = DataType::kFloat32;
  double factor = 1;            // of the result
  bool weights_travel = false;  // a sender's weights (Row::to) multiply the receiver's
};

// Sends every part to its row's `to`, receives from its row's `from`, and mixes. One message per
// peer and slice of 1 MiB carries whatever they exchange of all parts; two slices are in flight.
// All ranks give the same parts in the same order; rows must agree. Sent per rank: the sum over
// parts of their bytes times the peers they go to. Scratch: two slices per peer heard.
Task MixParts(Communicator& comm, std::vector<Part> parts, Mixing mixing);

// Counts the values of the parts for each rank they go to.
void CountSent(Stage& stage, const Communicator& comm, std::span<const Part> parts, DataType dtype);

// What a node does with a part of a bucket (ops/hierarchical.h): one row after the other, in place,
// counted.
Task MixPart(Stage& stage, Communicator& across, std::vector<Row> rows, std::byte* part,
             int64_t count);

// MixParts of all tensors of a bucket, counted. Where its ranks share memory (Op::TakesLane), each
// copies its values into its slots, chunk by chunk, and mixes those that it hears where they lie.
// Moved per rank: S there, and S for each peer heard. No scratch.
bool MixesOverLane(Stage& stage);
Task MixBucket(Stage& stage, std::vector<Part> parts, Mixing mixing);

}  // namespace horon::gossip
