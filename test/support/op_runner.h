// Runs ops on N ranks in one thread: Check, then the bucket on every rank, as the engine would do
// it. Elementwise ops are packed into one block and allreduced; staged ops get a Stage of their
// own. State per tensor lives as long as the runner. For tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/op/op.h"
#include "test/support/loop_transport.h"
#include "test/support/reference.h"

namespace horon::test {

// One tensor of a bucket: what each rank submits, by rank of the world.
struct OpTensor {
  std::string name = "w";
  std::vector<Request> requests;  // name and op are filled in by the runner
  std::vector<Bytes> inputs;

  // `values` by rank, of one dtype; a vector each unless `shape` says otherwise.
  static OpTensor Make(DataType dtype, const std::vector<Values>& values);
  OpTensor& Named(std::string new_name);
  OpTensor& Shaped(const std::vector<Shape>& by_rank);
  OpTensor& Scaled(double prescale, double postscale);
};

struct OpOutput {
  Shape shape;
  Bytes bytes;
  std::vector<int64_t> received;  // SetReceivedSplits
};

// By tensor of the bucket, then by rank. `status` is the first failure of Check or of any rank.
struct OpResult {
  Status status;
  std::vector<std::vector<OpOutput>> outputs;
  const OpOutput& at(size_t tensor, int rank) const {
    return outputs[tensor][static_cast<size_t>(rank)];
  }
};

class OpRunner {
 public:
  explicit OpRunner(const Topology& topology, uint64_t seed = 1, bool in_place = false);
  ~OpRunner();

  OpResult Run(const std::string& op, std::vector<OpTensor> bucket);
  // Check alone, with these global ranks.
  Status Check(const std::string& op, OpTensor tensor);
  LoopWorld& world() { return world_; }

 private:
  struct Rank;
  class RankStage;
  Status RunBucket(Op& op, const std::vector<OpTensor>& bucket,
                   const std::vector<Agreement>& agreed, OpResult& result);

  LoopWorld world_;
  bool in_place_;
  OpTable table_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace horon::test
