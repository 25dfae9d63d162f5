#include "ops/gossip/gpu_mix.h"

#include <algorithm>
#include <utility>

#include "runtime/device/batch.h"

namespace horon::gossip {
namespace {

// Bytes: of a slice, which each peer heard takes once more; and of those of all peers.
constexpr int64_t kMostSlice = 8 << 20, kRoom = 16 << 20;

// The same on all ranks, who hear differently many.
int64_t SliceOf(const std::vector<GpuRounds>& mixes) {
  size_t heard = 1;
  for (const GpuRounds& mix : mixes) {
    for (const Row& row : mix.rows) heard = std::max(heard, row.most_heard);
  }
  return std::min(kMostSlice, AlignedForGpus(kRoom / static_cast<int64_t>(heard)));
}

// Where each mix's tensors lie in one block of the device, and room behind them for what comes.
struct GpuLayout {
  std::vector<Piece> in, out;
  std::vector<Span> runs;  // by mix
  std::byte* room = nullptr;
  int64_t slice = 0;
};

// Every run is `parts` parts of equal length.
Result<GpuLayout> LayOut(GpuStage& stage, const std::vector<GpuRounds>& mixes, int64_t parts) {
  const int64_t element = SizeOf(stage.dtype()), slice = SliceOf(mixes);
  std::vector<int64_t> lengths;
  int64_t total = 0, longest = 0;
  size_t heard = 0;
  for (const GpuRounds& mix : mixes) {
    int64_t bytes = 0;
    for (const size_t i : mix.which) bytes += AlignedForGpus(stage.segments()[i].count * element);
    const int64_t part = AlignedForGpus((bytes + parts - 1) / parts);
    lengths.push_back(part * parts);
    total += part * parts;
    longest = std::max(longest, part);
    for (const Row& row : mix.rows) heard = std::max(heard, row.from.size());
  }
  HORON_ASSIGN(std::byte* const block,
               stage.Block(total + static_cast<int64_t>(heard) * std::min(slice, longest)));
  GpuLayout layout;
  layout.slice = slice;
  std::byte* run = block;
  for (size_t m = 0; m < mixes.size(); ++m) {
    std::byte* at = run;
    for (const size_t i : mixes[m].which) {
      const Segment& segment = stage.segments()[i];
      layout.in.push_back({segment.input, at, segment.count});
      layout.out.push_back({at, segment.output, segment.count});
      at += AlignedForGpus(segment.count * element);
    }
    layout.runs.push_back({run, lengths[m]});
    run += lengths[m];
  }
  layout.room = block + total;
  return layout;
}

// A slice of the block: sent, met by what comes, and mixed where it lies.
Task MixSlice(GpuStage& stage, const Row& row, double factor, Span own, std::byte* room) {
  const auto size = static_cast<size_t>(stage.comm().size());
  std::vector<Span> send(size), recv(size);
  std::vector<double> weights{factor * row.self};
  std::vector<const std::byte*> inputs{own.data};
  for (const Neighbor& to : row.to) {
    send[static_cast<size_t>(to.rank)] = own;
    stage.CountSent(stage.comm().global(to.rank), own.bytes);
  }
  for (const Neighbor& from : row.from) {
    recv[static_cast<size_t>(from.rank)] = {room, own.bytes};
    weights.push_back(factor * from.weight);
    inputs.push_back(room);
    room += own.bytes;
  }
  Task exchange = stage.Exchange(std::move(send), std::move(recv));
  HORON_CO_TRY(co_await exchange);
  co_return stage.stream().Mix(stage.dtype(), weights, inputs, own.data,
                               own.bytes / SizeOf(stage.dtype()));
}

// All rounds of a run of the block. `rows` and `layout` outlive it.
Task MixRun(GpuStage& stage, const std::vector<Row>& rows, double factor, Span run,
            const GpuLayout& layout) {
  for (const Row& row : rows) {
    for (int64_t begin = 0; begin < run.bytes; begin += layout.slice) {
      const Span slice{run.data + begin, std::min(layout.slice, run.bytes - begin)};
      Task mix = MixSlice(stage, row, factor, slice, layout.room);
      HORON_CO_TRY(co_await mix);
    }
    factor = 1;
  }
  co_return Status::Ok();
}

// Each node's rank of my place for the node.
void ToRanks(Neighbors& neighbors, const Communicator& comm, size_t place) {
  for (Neighbor& n : neighbors) n.rank = comm.nodes()[static_cast<size_t>(n.rank)][place];
}

}  // namespace

int64_t MostFused(int64_t threshold, DeviceKind where) {
  return where == DeviceKind::kHost ? threshold : threshold / 16 * 13;
}

bool MixesOnGpus(const Communicator& comm, bool between_nodes, bool everyone) {
  const size_t most = Stream::kMostInputs;
  if (!between_nodes) return static_cast<size_t>(comm.size()) <= most;
  return comm.nodes().size() <= most && (comm.one_node() || !everyone);
}

Task MixOnGpus(GpuStage& stage, std::vector<GpuRounds> mixes, double factor) {
  HORON_CO_TRY(PrepareOutputs(stage));
  const DataType dtype = stage.dtype();
  const Result<GpuLayout> laid = LayOut(stage, mixes, 1);
  if (!laid.ok()) co_return laid.status();
  const GpuLayout& layout = laid.value();
  HORON_CO_TRY(stage.stream().Move(dtype, dtype, 1.0, layout.in));
  for (size_t m = 0; m < mixes.size(); ++m) {
    Task mix = MixRun(stage, mixes[m].rows, factor, layout.runs[m], layout);
    HORON_CO_TRY(co_await mix);
  }
  co_return stage.stream().Move(dtype, dtype, 1.0, layout.out);
}

Task MixNodesOnGpus(GpuStage& stage, std::vector<GpuRounds> mixes, bool average) {
  HORON_CO_TRY(PrepareOutputs(stage));
  const DataType dtype = stage.dtype();
  const Communicator& comm = stage.comm();
  const auto& node = comm.own_node();
  const auto width = static_cast<int64_t>(node.size());
  const auto place =
      static_cast<size_t>(std::find(node.begin(), node.end(), comm.rank()) - node.begin());
  for (GpuRounds& mix : mixes) {
    for (Row& row : mix.rows) {
      ToRanks(row.from, comm, place);
      ToRanks(row.to, comm, place);
    }
  }
  const Result<GpuLayout> laid = LayOut(stage, mixes, width);
  if (!laid.ok()) co_return laid.status();
  const GpuLayout& layout = laid.value();
  const double factor = average ? 1.0 / static_cast<double>(width) : 1.0;
  HORON_CO_TRY(stage.stream().Move(dtype, dtype, stage.prescale(), layout.in));
  for (size_t m = 0; m < mixes.size(); ++m) {
    const Span& run = layout.runs[m];
    const int64_t bytes = run.bytes / width;
    const Span part{run.data + bytes * static_cast<int64_t>(place), bytes};
    if (width > 1)
      HORON_CO_TRY(stage.group().ReduceScatter(dtype, ReduceKind::kSum, run.data, part.data,
                                               bytes / SizeOf(dtype), stage.stream()));
    Task mix = MixRun(stage, mixes[m].rows, factor, part, layout);
    HORON_CO_TRY(co_await mix);
    if (width > 1)
      HORON_CO_TRY(stage.group().Allgather(part.data, run.data, bytes, stage.stream()));
  }
  co_return stage.stream().Move(dtype, dtype, stage.postscale(), layout.out);
}

}  // namespace horon::gossip
