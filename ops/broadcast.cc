// "broadcast:root=R": every rank's output becomes the input of global rank R. Any dtype.
// The tensors of a bucket travel together: from 256 KiB on between ranks that share a node through
// the root's slots of their lane, otherwise down a tree, without being packed.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/gpu_nodes.h"
#include "ops/rows.h"
#include "runtime/op/gpu_stage.h"
#include "runtime/transport/lane.h"

namespace horon {
namespace {

constexpr uint64_t kMoved = 0x6d6f766564;  // tells a bucket of this from others of its tensors

class BroadcastOp final : public Op {
 public:
  explicit BroadcastOp(int64_t root) : root_(root) {}

  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    const Request& request = *by_rank[0];
    const auto root = std::find(ranks.begin(), ranks.end(), root_);
    if (root == ranks.end()) {
      return Status::InvalidArgument("Op '" + request.op + "' for tensor '" + request.name +
                                     "': root rank " + std::to_string(root_) +
                                     " is not in the process set of ranks " +
                                     ToString(Shape(ranks.begin(), ranks.end())) + ".");
    }
    if (by_rank[static_cast<size_t>(root - ranks.begin())]->joined) {
      return Status::InvalidArgument("Op '" + request.op + "' for tensor '" + request.name +
                                     "': root rank " + std::to_string(root_) +
                                     " has joined and has nothing to send; broadcast before "
                                     "any rank joins, or from one that has not.");
    }
    HORON_TRY(CheckCommon(by_rank, ranks, "BROADCAST"));
    HORON_TRY(CheckShapes(by_rank, ranks, "BROADCAST"));
    HORON_TRY(CheckUnscaled(request));
    return Agreement{};
  }

  bool fusable() const override { return true; }
  bool lockable(const Request&) const override { return true; }
  bool fills_output() const override { return true; }
  bool TakesLane(Stage& stage) const override {
    const Lane* const lane = stage.comm().lane();
    if (lane == nullptr || !lane->CanSwap(kByte)) return false;
    int64_t bytes = 0;
    for (const Segment& s : stage.segments()) bytes += s.count * SizeOf(stage.dtype());
    return bytes >= kLaneBytes;
  }

  Task Run(Stage& stage) override {
    HORON_CO_TRY(PrepareOutputs(stage));
    if (TakesLane(stage)) co_return co_await RunOverLane(stage);
    Communicator& comm = stage.comm();
    const int root = RootIn(comm);
    std::vector<Span> spans, copies;
    for (const Segment& segment : stage.segments()) {
      const int64_t bytes = segment.count * SizeOf(stage.dtype());
      spans.push_back({segment.output, bytes});
      if (comm.rank() != root) continue;
      // A send only reads; Span has one type for both directions.
      spans.back().data = const_cast<std::byte*>(segment.input);
      copies.push_back({segment.output, bytes});
    }
    co_return co_await Broadcast(comm, spans, root, copies);
  }

  bool on_gpus(Stage&, bool) const override { return true; }
  Task RunOverNodes(GpuStage& stage) override;
  Status Enqueue(GpuStage& stage) override {
    std::vector<Span> spans;
    HORON_TRY(PrepareOutputs(stage));
    for (const Segment& segment : stage.segments()) {
      const int64_t bytes = segment.count * SizeOf(stage.dtype());
      spans.push_back({segment.output, bytes});
      if (stage.comm().rank() == RootIn(stage.comm()) && segment.output != segment.input)
        HORON_TRY(stage.stream().Copy(segment.output, segment.input, bytes));
    }
    return stage.group().Broadcast(spans, RootIn(stage.comm()), stage.stream());
  }

 private:
  // A row that the root alone gives, and all others take out of its slots while it packs what
  // follows: both copies run at the same time and meet in the caches. The root copies it from there
  // to an output of its own, too.
  Task RunOverLane(Stage& stage) {
    stage.SetAlgorithm("through shared memory");
    Lane& lane = *stage.comm().lane();
    const int root = RootIn(stage.comm());
    const bool gives = stage.comm().rank() == root;
    LaneRow row{root, BucketWord(stage.segments(), kMoved), {}};
    for (const Segment& s : stage.segments()) {
      const int64_t bytes = s.count * SizeOf(stage.dtype());
      const bool there = gives && s.input == s.output;
      row.parts.push_back({s.input, nullptr, gives ? bytes : 0, there ? 0 : bytes, bytes});
    }
    LaneSwap swap = lane.MakeSwap(kByte, row, LaneSwap::Passes::kOne);
    LaneSwap::Meet take = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
      std::memcpy(stage.segments()[i].output + at, theirs, static_cast<size_t>(count));
    };
    co_return co_await lane.Swap(swap, LaneSwap::Pass::kLast, std::move(take));
  }

  int RootIn(const Communicator& comm) const {
    const auto& ranks = comm.ranks();
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), root_) - ranks.begin());
  }
  int64_t root_;
};

// Several tensors in one block: down a tree of nodes, then over each node's group.
Task BroadcastOp::RunOverNodes(GpuStage& stage) {
  const Communicator& comm = stage.comm();
  const int root = RootIn(comm);
  const NodePlaces here(comm);
  const size_t nodes = here.nodes.size(), top = NodePlaces::NodeOf(comm, root);
  const size_t place = NodePlaces::LocalOf(comm, root);
  const size_t depth = (here.node + nodes - top) % nodes;  // nodes from the root's on
  HORON_CO_TRY(PrepareOutputs(stage));
  const bool alone = stage.segments().size() == 1;
  int64_t bytes = 0;
  for (const Segment& segment : stage.segments()) {
    const int64_t length = segment.count * SizeOf(stage.dtype());
    bytes += alone ? length : AlignedForGpus(length);
  }
  if (bytes == 0) co_return Status::Ok();
  const Result<std::byte*> taken = OneBlock(stage, bytes);
  if (!taken.ok()) co_return taken.status();
  std::byte *const block = taken.value(), *at = block;
  std::vector<Piece> in, out;
  for (const Segment& segment : stage.segments()) {
    in.push_back({segment.input, at, segment.count});
    out.push_back({at, segment.output, segment.count});
    at += AlignedForGpus(segment.count * SizeOf(stage.dtype()));
  }
  Stream& stream = stage.stream();
  const DataType dtype = stage.dtype();
  const bool there = alone && in[0].from == block;
  if (comm.rank() == root && !there) HORON_CO_TRY(stream.Move(dtype, dtype, 1.0, in));
  for (size_t step = 1; step < nodes; step *= 2) {
    std::vector<Span> send(static_cast<size_t>(comm.size())), recv(send.size());
    const auto peer = [&](size_t of) { return here.Peer((of + top) % nodes); };
    if (here.local == place && depth < step && depth + step < nodes)
      send[peer(depth + step)] = {block, bytes};
    if (here.local == place && depth >= step && depth < 2 * step)
      recv[peer(depth - step)] = {block, bytes};
    Task exchange = stage.Exchange(std::move(send), std::move(recv));
    HORON_CO_TRY(co_await exchange);
  }
  if (here.near() > 1) {
    const Span span{block, bytes};
    HORON_CO_TRY(stage.group().Broadcast({&span, 1}, static_cast<int>(place), stream));
  }
  co_return alone ? Status::Ok() : stream.Move(dtype, dtype, 1.0, out);
}

Result<std::unique_ptr<Op>> MakeBroadcast(OpArguments& arguments) {
  HORON_ASSIGN(const int64_t root, arguments.Integer("root", std::nullopt));
  return std::unique_ptr<Op>(std::make_unique<BroadcastOp>(root));
}

const OpRegistrar kBroadcast{"broadcast", MakeBroadcast, OpUse::kCall};

}  // namespace
}  // namespace horon
