#include "ops/gossip/gpu_mix.h"

#include <algorithm>
#include <utility>

namespace horon::gossip {
namespace {

constexpr int64_t kSlice = 8 << 20;    // bytes, which each peer heard takes once more
constexpr int64_t kGpuAlignment = 16;  // what a GPU moves at once

int64_t OnGpu(int64_t bytes) { return (bytes + kGpuAlignment - 1) / kGpuAlignment * kGpuAlignment; }

// A slice of the block: sent, met by what comes, and mixed where it lies.
Task MixSlice(GpuStage& stage, const Row& row, double factor, Span own, std::byte* room) {
  const auto size = static_cast<size_t>(stage.comm().size());
  std::vector<Span> send(size), recv(size);
  std::vector<double> weights{factor * row.self};
  std::vector<const std::byte*> inputs{own.data};
  for (const Neighbor& to : row.to) send[static_cast<size_t>(to.rank)] = own;
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

}  // namespace

Task MixOnGpus(GpuStage& stage, std::vector<GpuRound> rounds, double factor) {
  HORON_CO_TRY(PrepareOutputs(stage));
  const DataType dtype = stage.dtype();
  int64_t total = 0;
  size_t heard = 0;
  std::vector<Piece> in, out;
  std::vector<int64_t> ends;  // of each round's tensors in the block
  for (const Segment& segment : stage.segments()) total += OnGpu(segment.count * SizeOf(dtype));
  for (const GpuRound& round : rounds) heard = std::max(heard, round.row.from.size());
  auto block = stage.Block(total + static_cast<int64_t>(heard) * std::min(kSlice, total));
  if (!block.ok()) co_return block.status();
  std::byte* at = block.value();
  for (const GpuRound& round : rounds) {
    for (const size_t i : round.which) {
      const Segment& segment = stage.segments()[i];
      in.push_back({segment.input, at, segment.count});
      out.push_back({at, segment.output, segment.count});
      at += OnGpu(segment.count * SizeOf(dtype));
    }
    ends.push_back(at - block.value());
  }
  HORON_CO_TRY(stage.stream().Move(dtype, dtype, 1.0, in));
  int64_t begin = 0;
  for (size_t r = 0; r < rounds.size(); ++r) {
    for (; begin < ends[r]; begin = std::min(begin + kSlice, ends[r])) {
      const Span own{block.value() + begin, std::min(kSlice, ends[r] - begin)};
      Task mix = MixSlice(stage, rounds[r].row, factor, own, block.value() + total);
      HORON_CO_TRY(co_await mix);
    }
  }
  co_return stage.stream().Move(dtype, dtype, 1.0, out);
}

}  // namespace horon::gossip
