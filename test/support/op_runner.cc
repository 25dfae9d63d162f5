#include "test/support/op_runner.h"

#include <cstring>
#include <numeric>
#include <utility>

namespace horon::test {

OpTensor OpTensor::Make(DataType dtype, const std::vector<Values>& values) {
  OpTensor tensor;
  for (const Values& of_rank : values) {
    Request request;
    request.dtype = dtype;
    request.shape = {static_cast<int64_t>(of_rank.size())};
    tensor.requests.push_back(request);
    tensor.inputs.push_back(Encode(dtype, of_rank));
  }
  return tensor;
}

OpTensor& OpTensor::Named(std::string new_name) {
  name = std::move(new_name);
  return *this;
}

OpTensor& OpTensor::Shaped(const std::vector<Shape>& by_rank) {
  for (size_t rank = 0; rank < requests.size(); ++rank) requests[rank].shape = by_rank[rank];
  return *this;
}

OpTensor& OpTensor::Scaled(double prescale, double postscale) {
  for (Request& request : requests) {
    request.prescale = prescale;
    request.postscale = postscale;
  }
  return *this;
}

// What outlives a bucket on one rank.
struct OpRunner::Rank {
  std::map<std::pair<std::string, std::string>, std::unique_ptr<TensorState>> states;  // name, op
};

class OpRunner::RankStage final : public Stage {
 public:
  RankStage(Communicator& comm, Rank& rank, std::vector<Segment> segments,
            std::vector<OpOutput*> outputs)
      : comm_(&comm), rank_(&rank), segments_(std::move(segments)), outputs_(std::move(outputs)) {}

  Communicator& comm() override { return *comm_; }
  std::span<Segment> segments() override { return segments_; }
  DataType dtype() const override { return segments_[0].request->dtype; }
  double prescale() const override { return segments_[0].request->prescale; }
  double postscale() const override { return segments_[0].request->postscale; }
  int set_size() const override { return comm_->size(); }
  Result<Buffer> Scratch(int64_t bytes) override { return comm_->pool().Take(bytes); }
  Status AllocateOutput(size_t i, Shape shape) override {
    outputs_[i]->bytes.resize(static_cast<size_t>(CountOf(shape) * SizeOf(dtype())));
    outputs_[i]->shape = std::move(shape);
    segments_[i].output = outputs_[i]->bytes.data();
    return Status::Ok();
  }
  void SetReceivedSplits(size_t i, std::vector<int64_t> splits) override {
    outputs_[i]->received = std::move(splits);
  }
  std::unique_ptr<TensorState>& State(size_t i) override {
    const Request& request = *segments_[i].request;
    return rank_->states[{request.name, request.op}];
  }

 private:
  Communicator* comm_;
  Rank* rank_;
  std::vector<Segment> segments_;
  std::vector<OpOutput*> outputs_;
};

namespace {

// What the engine does for an elementwise op where nothing streams: pack, reduce, unpack.
Task RunElementwise(Stage& stage, Elementwise reduction) {
  const DataType dtype = stage.dtype();
  int64_t count = 0;
  for (const Segment& segment : stage.segments()) count += segment.count;
  auto packed = stage.Scratch(count * SizeOf(dtype));
  if (!packed.ok()) co_return packed.status();
  std::byte* at = packed.value().data();
  for (const Segment& segment : stage.segments()) {
    ScaleInto(dtype, stage.prescale(), segment.input, at, segment.count);
    at += segment.count * SizeOf(dtype);
  }
  const double scale =
      reduction.average ? stage.postscale() / stage.comm().size() : stage.postscale();
  HORON_CO_TRY(co_await Allreduce(stage.comm(), packed.value().data(), count,
                                  {dtype, reduction.kind, scale}));
  at = packed.value().data();
  for (const Segment& segment : stage.segments()) {
    const int64_t bytes = segment.count * SizeOf(dtype);
    if (bytes > 0) std::memcpy(segment.output, at, static_cast<size_t>(bytes));
    at += bytes;
  }
  co_return Status::Ok();
}

// Ops whose output has a size of its own.
bool SizesItsOutput(const std::string& op) {
  return op.starts_with("allgather") || op.starts_with("neighbor_allgather") ||
         op.starts_with("alltoall") || op.starts_with("reduce_scatter");
}

}  // namespace

OpRunner::OpRunner(const Topology& topology, uint64_t seed, bool in_place)
    : world_(topology, seed), in_place_(in_place) {
  for (int rank = 0; rank < topology.size(); ++rank) ranks_.push_back(std::make_unique<Rank>());
}
OpRunner::~OpRunner() = default;

Status OpRunner::Check(const std::string& op, OpTensor tensor) {
  HORON_ASSIGN(const Op* found, table_.Find(op));
  std::vector<const Request*> requests;
  for (Request& request : tensor.requests) {
    request.name = tensor.name;
    request.op = op;
    requests.push_back(&request);
  }
  std::vector<int> ranks(requests.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return found->Check(requests, ranks).status();
}

OpResult OpRunner::Run(const std::string& op, std::vector<OpTensor> bucket) {
  OpResult result;
  const Result<Op*> found = table_.Find(op);
  result.status = found.status();
  if (!found.ok()) return result;
  std::vector<Agreement> agreed;
  std::vector<int> ranks(static_cast<size_t>(world_.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (OpTensor& tensor : bucket) {
    std::vector<const Request*> requests;
    for (Request& request : tensor.requests) {
      request.name = tensor.name;
      request.op = op;
      requests.push_back(&request);
    }
    const Result<Agreement> agreement = found.value()->Check(requests, ranks);
    result.status = agreement.status();
    if (!agreement.ok()) return result;
    agreed.push_back(agreement.value());
  }
  result.status = RunBucket(*found.value(), bucket, agreed, result);
  return result;
}

Status OpRunner::RunBucket(Op& op, const std::vector<OpTensor>& bucket,
                           const std::vector<Agreement>& agreed, OpResult& result) {
  const auto size = static_cast<size_t>(world_.size());
  result.outputs.assign(bucket.size(), std::vector<OpOutput>(size));
  std::vector<std::vector<Bytes>> inputs;  // by tensor, rank: in place they are the outputs' memory
  for (const OpTensor& tensor : bucket) inputs.push_back(tensor.inputs);
  std::vector<std::unique_ptr<RankStage>> stages(size);
  const auto statuses = world_.Run([&](Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    std::vector<Segment> segments;
    std::vector<OpOutput*> outputs;
    for (size_t t = 0; t < bucket.size(); ++t) {
      const Request& request = bucket[t].requests[rank];
      OpOutput& output = result.outputs[t][rank];
      std::byte* lent = nullptr;
      const bool owned = SizesItsOutput(request.op) || (!in_place_ && t % 2 == 1);  // by the Work
      if (!owned || op.elementwise()) {
        output.shape = request.shape;
        output.bytes = in_place_ ? inputs[t][rank] : Bytes(inputs[t][rank].size(), std::byte{0xee});
        lent = output.bytes.data();
      }
      const std::byte* input = in_place_ && lent != nullptr ? lent : inputs[t][rank].data();
      const auto count = static_cast<int64_t>(inputs[t][rank].size()) / SizeOf(request.dtype);
      segments.push_back({TensorId(0, request.name), &request, &agreed[t], input, lent, count});
      outputs.push_back(&output);
    }
    stages[rank] =
        std::make_unique<RankStage>(comm, *ranks_[rank], std::move(segments), std::move(outputs));
    const auto reduction = op.elementwise();
    return reduction ? RunElementwise(*stages[rank], *reduction) : op.Run(*stages[rank]);
  });
  for (const Status& status : statuses) HORON_TRY(status);
  for (size_t t = 0; t < bucket.size(); ++t) {  // nobody wrote to an input
    if (inputs[t] != bucket[t].inputs) return Status::Internal("an op changed its input");
  }
  return Status::Ok();
}

}  // namespace horon::test
