// "allgather": the rows of all ranks, one below the other by ascending rank. The first dimension
// may differ between ranks. The output belongs to the Work. Any dtype. Direct exchange: every
// tensor of a bucket in one message per peer, straight into the outputs.
#include <cstring>
#include <utility>
#include <vector>

#include "ops/gpu_nodes.h"
#include "ops/rows.h"
#include "runtime/op/gpu_stage.h"

namespace horon {
namespace {

class AllgatherOp final : public Op {
 public:
  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckCommon(by_rank, ranks, "ALLGATHER"));
    HORON_TRY(CheckRows(by_rank, ranks, "ALLGATHER"));
    HORON_TRY(CheckUnscaled(*by_rank[0]));
    Agreement agreed;
    for (const Request* request : by_rank) agreed.sizes.push_back(request->shape[0]);
    return agreed;
  }

  bool fusable() const override { return true; }
  bool lockable(const Request&) const override { return true; }
  WhenJoined when_joined() const override { return WhenJoined::kNoRows; }
  int64_t FusionBytes(int64_t, const Request& request, const Agreement& agreed) const override {
    return GatheredBytes(request, agreed);
  }
  Task Run(Stage& stage) override;
  bool on_gpus(Stage&, bool) const override { return true; }
  Status Enqueue(GpuStage& stage) override;
  Task RunOverNodes(GpuStage& stage) override;
};

// Per rank, where its rows lie in each tensor's output.
using Places = std::vector<std::vector<Span>>;

Result<Places> PlaceOutputs(Stage& stage) {
  Places places(static_cast<size_t>(stage.comm().size()));
  for (size_t i = 0; i < stage.segments().size(); ++i) {
    const Segment& segment = stage.segments()[i];
    const std::vector<int64_t>& rows = segment.agreed->sizes;
    int64_t total = 0;
    for (const int64_t count : rows) total += count;
    HORON_TRY(stage.AllocateOutput(i, WithRows(segment.request->shape, total)));
    stage.SetReceivedSplits(i, rows);
    const int64_t row_bytes = RowBytes(*segment.request);
    std::byte* at = stage.segments()[i].output;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      const int64_t bytes = rows[rank] * row_bytes;
      if (bytes == 0) continue;  // the output may be null
      places[rank].push_back({at, bytes});
      at += bytes;
    }
  }
  return places;
}

Task AllgatherOp::Run(Stage& stage) {
  Communicator& comm = stage.comm();
  const Result<Places> placed = PlaceOutputs(stage);
  if (!placed.ok()) co_return placed.status();
  const Places& places = placed.value();
  const auto& own = places[static_cast<size_t>(comm.rank())];
  size_t next = 0;
  for (const Segment& segment : stage.segments()) {
    const int64_t bytes = segment.count * SizeOf(stage.dtype());
    if (bytes > 0) std::memcpy(own[next++].data, segment.input, static_cast<size_t>(bytes));
  }
  std::vector<Transfer> transfers(2 * static_cast<size_t>(comm.size()));
  for (int step = 1; step < comm.size(); ++step) {
    const int to = (comm.rank() + step) % comm.size();
    const int from = (comm.rank() - step + comm.size()) % comm.size();
    const auto& theirs = places[static_cast<size_t>(from)];
    auto* pair = &transfers[2 * static_cast<size_t>(step)];
    if (!theirs.empty()) HORON_CO_TRY(comm.Receive(pair[0], from, theirs));
    if (!own.empty()) HORON_CO_TRY(comm.Send(pair[1], to, own));
  }
  for (Transfer& transfer : transfers) HORON_CO_TRY(co_await Finished(transfer));
  co_return Status::Ok();
}

// Tensor by tensor what every rank sends to all, itself included.
Status AllgatherOp::Enqueue(GpuStage& stage) {
  HORON_ASSIGN(const Places places, PlaceOutputs(stage));
  const auto size = static_cast<size_t>(stage.comm().size());
  std::vector<size_t> next(size);  // of each rank's places, which lack tensors without rows
  std::vector<Span> send, recv;
  for (const Segment& segment : stage.segments()) {
    const Span own{const_cast<std::byte*>(segment.input), segment.count * SizeOf(stage.dtype())};
    send.insert(send.end(), size, own);
    for (size_t rank = 0; rank < size; ++rank) {
      const bool rows = segment.agreed->sizes[rank] * RowCount(segment.request->shape) > 0;
      recv.push_back(rows ? places[rank][next[rank]++] : Span{});
    }
  }
  return stage.group().Exchange(send, recv, stage.stream());
}

// Several tensors in one block, each rank's behind those of the one before: so one output lies,
// too. Rows go to the ranks of the same place in other nodes, and with what came from there to the
// ranks of this node.
Task AllgatherOp::RunOverNodes(GpuStage& stage) {
  const Result<Places> placed = PlaceOutputs(stage);
  if (!placed.ok()) co_return placed.status();
  const Places& places = placed.value();
  const auto size = places.size(), me = static_cast<size_t>(stage.comm().rank());
  const bool alone = stage.segments().size() == 1;
  std::vector<int64_t> begin, length;  // in the block, by rank
  int64_t bytes = 0;
  for (const std::vector<Span>& of_rank : places) {
    begin.push_back(bytes);
    for (const Span& span : of_rank) bytes += alone ? span.bytes : AlignedForGpus(span.bytes);
    length.push_back(bytes - begin.back());
  }
  if (bytes == 0) co_return Status::Ok();
  const Result<std::byte*> taken = OneBlock(stage, bytes);
  if (!taken.ok()) co_return taken.status();
  std::byte* const block = taken.value();
  const DataType dtype = stage.dtype();
  std::vector<Piece> in, out;
  for (size_t rank = 0; rank < size; ++rank) {
    std::byte* at = block + begin[rank];
    for (const Span& span : places[rank]) {
      out.push_back({at, span.data, span.bytes / SizeOf(dtype)});
      at += AlignedForGpus(span.bytes);
    }
  }
  std::byte* at = block + begin[me];
  for (const Segment& segment : stage.segments()) {
    const int64_t own = segment.count * SizeOf(stage.dtype());
    if (own == 0) continue;
    in.push_back({segment.input, at, segment.count});
    at += AlignedForGpus(own);
  }
  Stream& stream = stage.stream();
  HORON_CO_TRY(stream.Move(dtype, dtype, 1.0, in));
  const auto rows = [&](size_t rank) { return Span{block + begin[rank], length[rank]}; };
  const NodePlaces here(stage.comm());
  std::vector<Span> send(size), recv(size);
  for (size_t node = 0; node < here.nodes.size(); ++node) {
    if (node == here.node) continue;
    send[here.Peer(node)] = rows(me);
    recv[here.Peer(node)] = rows(here.Peer(node));
  }
  Task exchange = stage.Exchange(std::move(send), std::move(recv));
  HORON_CO_TRY(co_await exchange);
  if (here.near() > 1) {
    std::vector<Span> give, take;  // node by node, to and from each rank here
    for (const std::vector<int>& node : here.nodes) {
      for (size_t other = 0; other < here.near(); ++other) {
        const bool own = other == here.local;
        give.push_back(own ? Span{} : rows(static_cast<size_t>(node[here.local])));
        take.push_back(own ? Span{} : rows(static_cast<size_t>(node[other])));
      }
    }
    HORON_CO_TRY(stage.group().Exchange(give, take, stream));
  }
  co_return alone ? Status::Ok() : stream.Move(dtype, dtype, 1.0, out);
}

const OpRegistrar kAllgather{"allgather", MakeOp<AllgatherOp>, OpUse::kCall};

}  // namespace
}  // namespace horon
