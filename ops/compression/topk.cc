// "topk:ratio=0.01" or "topk:count=K" [,op=average|sum] [,values=fp32|fp16|bf16]: top-k with error
// feedback. Each rank adds what it did not send before (its residual, kept per tensor in fp32),
// sends the k largest magnitudes, and keeps the rest:
//   p = prescale * input + residual;  send the k largest |p|;  residual = p - what was sent
//   output = postscale * sum over ranks, ascending, of what was sent (/ n for average)
// k = ceil(ratio * elements), or K, at most all. Floating dtypes of fewer than 2^32 elements.
// Sent per rank: (n - 1) times 4 + 8 k bytes (4 + 6 k with 16-bit values) for each tensor.
// Source: Stich, Cordonnier, Jaggi, Sparsified SGD with Memory, NeurIPS 2018.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/compression/topk_code.h"
#include "runtime/op/op.h"

namespace horon {
namespace {

struct Residual final : TensorState {
  std::vector<float> value;
};

struct TopkParameters {
  double ratio = 0;  // of the elements; 0: `count` holds
  int64_t count = 0;
  bool average = true;
  DataType values = DataType::kFloat32;

  int64_t Chosen(int64_t n) const {
    if (ratio == 0) return std::min(count, n);
    return std::min(n, static_cast<int64_t>(std::ceil(ratio * static_cast<double>(n))));
  }
};

class TopK final : public Op {
 public:
  explicit TopK(const TopkParameters& parameters) : parameters_(parameters) {}

  Status CheckAlone(const Request& request) const override { return CheckFloating(request); }

  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    const Request& request = *by_rank[0];
    HORON_TRY(CheckFloatingAlike(by_rank, ranks));
    if (CountOf(request.shape) > std::numeric_limits<uint32_t>::max()) {
      return Status::InvalidArgument("Op '" + request.op +
                                     "' takes fewer than 2^32 elements; tensor '" + request.name +
                                     "' has shape " + ToString(request.shape) + ".");
    }
    return Agreement{};
  }

  bool fusable() const override { return true; }
  bool lockable(const Request&) const override { return true; }
  bool fills_output() const override { return true; }

  // All tensors of the bucket travel in one message per peer.
  Task Run(Stage& stage) override {
    HORON_CO_TRY(PrepareOutputs(stage));
    Communicator& comm = stage.comm();
    int64_t bytes = 0;
    for (const Segment& segment : stage.segments()) bytes += MessageBytes(segment.count);
    auto messages = stage.Scratch(bytes * comm.size());
    if (!messages.ok()) co_return messages.status();
    std::byte* const block = messages.value().data();
    int64_t at = bytes * comm.rank();
    for (size_t i = 0; i < stage.segments().size(); ++i) {
      HORON_CO_TRY(Send(stage, i, block + at));
      at += MessageBytes(stage.segments()[i].count);
    }
    std::vector<Part> by_rank;
    for (int rank = 0; rank < comm.size(); ++rank) by_rank.push_back({rank * bytes, bytes});
    HORON_CO_TRY(co_await Allgather(comm, block, by_rank));
    at = 0;
    for (size_t i = 0; i < stage.segments().size(); ++i) {
      HORON_CO_TRY(Receive(stage, i, block + at, bytes));
      at += MessageBytes(stage.segments()[i].count);
    }
    co_return Status::Ok();
  }

  // What it has not sent waits until it is back.
  void Skip(Stage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i) stage.State(i);
  }

 private:
  int64_t MessageBytes(int64_t count) const {
    return topk::MessageBytes(parameters_.Chosen(count), parameters_.values);
  }

  // Writes this rank's message for tensor i and keeps the residual.
  Status Send(Stage& stage, size_t i, std::byte* message) const {
    const Segment& segment = stage.segments()[i];
    const int64_t n = segment.count, k = parameters_.Chosen(n);
    auto& state = stage.State(i);
    if (!state) state = std::make_unique<Residual>();
    auto& residual = static_cast<Residual&>(*state).value;
    if (static_cast<int64_t>(residual.size()) != n) residual.assign(static_cast<size_t>(n), 0.0f);

    // p takes the residual's place. Scratch serves the widened input first, then the selection.
    static_assert(sizeof(float) == sizeof(uint32_t));
    HORON_ASSIGN(const Buffer scratch, stage.Scratch(n * SizeOf(DataType::kFloat32)));
    auto* widened = reinterpret_cast<float*>(scratch.data());
    ToFloat(stage.dtype(), segment.input, widened, n);
    auto* p = reinterpret_cast<std::byte*>(residual.data());
    CombineInto(DataType::kFloat32, stage.prescale(), scratch.data(), 1.0, p, p, n);
    auto* order = reinterpret_cast<uint32_t*>(scratch.data());
    topk::Select(residual.data(), n, k, order);
    topk::Encode(residual, {order, static_cast<size_t>(k)}, parameters_.values, message);
    return Status::Ok();
  }

  // Adds everybody's message for tensor i, `stride` bytes apart.
  Status Receive(Stage& stage, size_t i, const std::byte* messages, int64_t stride) const {
    const Segment& segment = stage.segments()[i];
    const int64_t n = segment.count, k = parameters_.Chosen(n);
    const int size = stage.comm().size();
    HORON_ASSIGN(const Buffer scratch, stage.Scratch(n * SizeOf(DataType::kFloat32)));
    if (n == 0) return Status::Ok();
    std::memset(scratch.data(), 0, static_cast<size_t>(n) * sizeof(float));
    auto* sum = reinterpret_cast<float*>(scratch.data());
    for (int rank = 0; rank < size; ++rank) {
      HORON_TRY(topk::AddDecoded(messages + rank * stride, k, parameters_.values, sum, n));
    }
    const double parts = parameters_.average ? stage.set_size() : 1;
    const double scale = stage.postscale() / parts;
    ScaleInto(DataType::kFloat32, scale, scratch.data(), scratch.data(), n);
    FromFloat(stage.dtype(), sum, segment.output, n);
    return Status::Ok();
  }

  TopkParameters parameters_;
};

Result<std::unique_ptr<Op>> MakeTopK(OpArguments& arguments) {
  TopkParameters parameters;
  HORON_ASSIGN(parameters.ratio, arguments.Number("ratio", 0.0));
  HORON_ASSIGN(parameters.count, arguments.Integer("count", 0));
  HORON_ASSIGN(const std::string op, arguments.Choice("op", {"average", "sum"}));
  HORON_ASSIGN(const std::string values, arguments.Choice("values", {"fp32", "fp16", "bf16"}));
  const bool ratio = parameters.ratio > 0 && parameters.ratio <= 1;
  if (parameters.ratio != 0 && !ratio)
    return arguments.Wrong("ratio must be above 0 and at most 1");
  if (parameters.count < 0) return arguments.Wrong("count must be at least 1");
  if (ratio == (parameters.count > 0)) return arguments.Wrong("give either ratio or count");
  parameters.average = op == "average";
  if (values == "fp16") parameters.values = DataType::kFloat16;
  if (values == "bf16") parameters.values = DataType::kBFloat16;
  return std::unique_ptr<Op>(std::make_unique<TopK>(parameters));
}

const OpRegistrar kTopK{"topk", MakeTopK};

}  // namespace
}  // namespace horon
