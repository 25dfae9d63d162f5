#include "ops/hierarchical.h"

#include <utility>

namespace horon {

Task OverNodes(Stage& stage, std::vector<size_t> which, ReduceKind kind, bool average,
               NodeStep between) {
  Communicator& comm = stage.comm();
  const DataType dtype = stage.dtype();
  int64_t count = 0;
  for (const size_t i : which) count += stage.segments()[i].count;
  auto scratch = stage.Scratch(count * SizeOf(dtype));
  if (!scratch.ok()) co_return scratch.status();
  std::byte* const block = scratch.value().data();
  std::byte* at = block;
  for (const size_t i : which) {
    const Segment& segment = stage.segments()[i];
    ScaleInto(dtype, stage.prescale(), segment.input, at, segment.count);
    at += segment.count * SizeOf(dtype);
  }
  const auto& node = comm.nodes()[static_cast<size_t>(comm.node_of(comm.rank()))];
  Reduction inside{dtype, kind};
  if (average) inside.scale = 1.0 / static_cast<double>(node.size());
  HORON_CO_TRY(
      co_await OverNodes(comm, block, block, count, inside, std::move(between), PartIn::kOutput));
  at = block;
  for (const size_t i : which) {
    const Segment& segment = stage.segments()[i];
    ScaleInto(dtype, stage.postscale(), at, segment.output, segment.count);
    at += segment.count * SizeOf(dtype);
  }
  co_return Status::Ok();
}

}  // namespace horon
