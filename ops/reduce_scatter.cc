// "reduce_scatter[:op=sum|average]": the sum (or average) of all ranks' tensors, cut along the
// first dimension: rank p keeps the p-th part, in an output that belongs to the Work. Parts differ
// by at most one row, the first ones have more. Default: sum. Direct exchange, added by ascending
// rank.
#include <utility>
#include <vector>

#include "ops/gpu_nodes.h"
#include "ops/rows.h"
#include "runtime/op/gpu_stage.h"

namespace horon {
namespace {

class ReduceScatterOp final : public Op {
 public:
  explicit ReduceScatterOp(bool average) : average_(average) {}

  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    const Request& request = *by_rank[0];
    HORON_TRY(CheckCommon(by_rank, ranks, "REDUCESCATTER"));
    HORON_TRY(CheckRows(by_rank, ranks, "REDUCESCATTER"));
    HORON_TRY(CheckShapes(by_rank, ranks, "REDUCESCATTER"));
    const bool scaled = average_ || request.prescale != 1.0 || request.postscale != 1.0;
    if (!Supports(ReduceKind::kSum, request.dtype, scaled)) {
      return Status::InvalidArgument("Op '" + request.op + "' means nothing for tensor '" +
                                     request.name + "' of " + std::string(NameOf(request.dtype)) +
                                     ".");
    }
    return Agreement{};
  }

  bool lockable(const Request&) const override { return true; }
  // It is cut for all ranks; the part of one that has joined is lost.
  WhenJoined when_joined() const override { return WhenJoined::kZeros; }

  Task Run(Stage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i) HORON_CO_TRY(co_await RunOne(stage, i));
    co_return Status::Ok();
  }
  bool on_gpus(Stage& stage, bool everyone) const override {
    return everyone || stage.comm().nodes().size() <= Stream::kMostInputs;
  }
  Task RunOverNodes(GpuStage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i)
      HORON_CO_TRY(co_await RunOneOverNodes(stage, i));
    co_return Status::Ok();
  }
  Status Enqueue(GpuStage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i) HORON_TRY(EnqueueOne(stage, i));
    return Status::Ok();
  }

 private:
  Status EnqueueOne(GpuStage& stage, size_t i);
  Task RunOneOverNodes(GpuStage& stage, size_t i);
  Reduction ReductionIn(const Stage& stage, int size) const {
    Reduction reduction{stage.dtype(), ReduceKind::kSum, stage.postscale()};
    if (average_) reduction.scale /= size;
    return reduction;
  }
  Task RunOne(Stage& stage, size_t i);
  bool average_;
};

Task ReduceScatterOp::RunOne(Stage& stage, size_t i) {
  Communicator& comm = stage.comm();
  const Segment& segment = stage.segments()[i];
  const Shape& shape = segment.request->shape;
  const int64_t row_count = RowCount(shape);
  RecycledVector<Part> parts =
      NearlyEqualParts(shape[0], comm.size(), comm.size());  // rows, then elements
  const int64_t rows = parts[static_cast<size_t>(comm.rank())].count;
  for (Part& part : parts) part = {part.begin * row_count, part.count * row_count};
  HORON_CO_TRY(stage.AllocateOutput(i, WithRows(shape, rows)));
  std::byte* output = stage.segments()[i].output;

  const Reduction reduction = ReductionIn(stage, comm.size());
  if (stage.prescale() == 1.0) {
    co_return co_await ReduceScatter(comm, segment.input, parts, output, reduction);
  }
  auto scaled = stage.Scratch(segment.count * SizeOf(stage.dtype()));
  if (!scaled.ok()) co_return scaled.status();
  std::byte* block = scaled.value().data();
  ScaleInto(stage.dtype(), stage.prescale(), segment.input, block, segment.count);
  co_return co_await ReduceScatter(comm, block, parts, output, reduction);
}

// The parts of a group are equally long: where rows do not divide evenly they are moved apart to
// the length of the first.
Status ReduceScatterOp::EnqueueOne(GpuStage& stage, size_t i) {
  const Segment& segment = stage.segments()[i];
  const Shape& shape = segment.request->shape;
  const int size = stage.comm().size(), me = stage.comm().rank();
  const int64_t element = SizeOf(stage.dtype()), row_count = RowCount(shape);
  const auto parts = NearlyEqualParts(shape[0], size, size);  // rows
  const int64_t rows = parts[static_cast<size_t>(me)].count, longest = parts[0].count * row_count;
  HORON_TRY(stage.AllocateOutput(i, WithRows(shape, rows)));
  std::byte* const output = stage.segments()[i].output;
  Stream& stream = stage.stream();
  const double scale = ReductionIn(stage, size).scale;
  if (shape[0] % size == 0 && stage.prescale() == 1.0) {
    HORON_TRY(stage.group().ReduceScatter(stage.dtype(), ReduceKind::kSum, segment.input, output,
                                          longest, stream));
    if (scale == 1.0) return Status::Ok();
    const Piece whole{output, output, longest};
    return stream.Move(stage.dtype(), stage.dtype(), scale, {&whole, 1});
  }
  HORON_ASSIGN(std::byte* const block, stage.Block(longest * element * size));
  std::vector<Piece> pieces;
  for (int64_t r = 0; r < size; ++r) {
    const Part& part = parts[static_cast<size_t>(r)];
    pieces.push_back({segment.input + part.begin * row_count * element,
                      block + r * longest * element, part.count * row_count});
  }
  HORON_TRY(stream.Move(stage.dtype(), stage.dtype(), stage.prescale(), pieces));
  std::byte* const mine = block + me * longest * element;
  HORON_TRY(stage.group().ReduceScatter(stage.dtype(), ReduceKind::kSum, block, mine, longest,
                                        stream));
  const Piece out{mine, output, rows * row_count};
  return stream.Move(stage.dtype(), stage.dtype(), scale, {&out, 1});
}

// Inside each node what the ranks of one place are to have goes to the rank of that place, as the
// sum of the node; then each gets the other nodes' sums of its own part, and adds by ascending
// node.
Task ReduceScatterOp::RunOneOverNodes(GpuStage& stage, size_t i) {
  const Segment& segment = stage.segments()[i];
  const Shape& shape = segment.request->shape;
  const int size = stage.comm().size(), me = stage.comm().rank();
  const NodePlaces here(stage.comm());
  const DataType dtype = stage.dtype();
  const int64_t element = SizeOf(dtype), row_bytes = RowCount(shape) * element;
  const auto parts = NearlyEqualParts(shape[0], size, size);  // rows
  const auto bytes_of = [&](size_t rank) { return parts[rank].count * row_bytes; };
  HORON_CO_TRY(stage.AllocateOutput(i, WithRows(shape, parts[static_cast<size_t>(me)].count)));
  const auto nodes = static_cast<int64_t>(here.nodes.size());
  const int64_t room = AlignedForGpus(parts[0].count * row_bytes), share = nodes * room;
  if (room == 0) co_return Status::Ok();
  const Result<std::byte*> block = stage.Block(share * static_cast<int64_t>(here.near() + 1));
  if (!block.ok()) co_return block.status();
  std::byte* const theirs = block.value();  // the other nodes' sums, behind which are all parts
  std::byte* const all = theirs + share;
  std::byte* const mine = all + static_cast<int64_t>(here.local) * share;
  std::vector<Piece> pieces;
  for (size_t node = 0; node < here.nodes.size(); ++node) {
    for (size_t place = 0; place < here.near(); ++place) {
      const Part& part = parts[static_cast<size_t>(here.nodes[node][place])];
      std::byte* const at =
          all + static_cast<int64_t>(place) * share + static_cast<int64_t>(node) * room;
      pieces.push_back(
          {segment.input + part.begin * row_bytes, at, part.count * RowCount(shape)});
    }
  }
  Stream& stream = stage.stream();
  HORON_CO_TRY(stream.Move(dtype, dtype, stage.prescale(), pieces));
  if (here.near() > 1) {
    HORON_CO_TRY(stage.group().ReduceScatter(dtype, ReduceKind::kSum, all, mine, share / element,
                                             stream));
  }
  const auto own = static_cast<size_t>(me);
  std::vector<Span> send(static_cast<size_t>(size)), recv(send.size());
  std::vector<const std::byte*> inputs;
  for (size_t node = 0; node < here.nodes.size(); ++node) {
    const int64_t at = static_cast<int64_t>(node) * room;
    inputs.push_back(node == here.node ? mine + at : theirs + at);
    if (node == here.node) continue;
    send[here.Peer(node)] = {mine + at, bytes_of(here.Peer(node))};
    recv[here.Peer(node)] = {theirs + at, bytes_of(own)};
  }
  Task exchange = stage.Exchange(std::move(send), std::move(recv));
  HORON_CO_TRY(co_await exchange);
  if (bytes_of(own) == 0) co_return Status::Ok();
  co_return stream.Reduce(ReduceKind::kSum, dtype, ReductionIn(stage, size).scale, inputs,
                          stage.segments()[i].output, bytes_of(own) / element);
}

Result<std::unique_ptr<Op>> MakeReduceScatter(OpArguments& arguments) {
  HORON_ASSIGN(const std::string op, arguments.Choice("op", {"sum", "average"}));
  return std::unique_ptr<Op>(std::make_unique<ReduceScatterOp>(op == "average"));
}

const OpRegistrar kReduceScatter{"reduce_scatter", MakeReduceScatter, OpUse::kCall};

}  // namespace
}  // namespace horon
