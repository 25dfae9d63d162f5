#include "ops/hierarchical.h"

#include <utility>

#include "runtime/op/slices.h"

namespace horon {
namespace {

// What a rank sends of a slice to another node: large beside what a message costs, and small beside
// a bucket, because the link is idle while the first slice is reduced and the last one gathered.
constexpr int64_t kPartBytes = 256 << 10;
// Each rank has one peer or few, so it takes less than a reduction to keep links busy, and ranks of
// a node that share one end at the same time. At least four slices: with 8 ranks a node 8 MiB.
constexpr int64_t kBytesInFlight = 2 << 20;

}  // namespace

Task OverNodes(Stage& stage, std::vector<size_t> which, bool average, NodeStep between) {
  const Communicator& comm = stage.comm();
  const auto& node = comm.own_node();
  Reduction inside{stage.dtype(), ReduceKind::kSum, stage.prescale() * stage.postscale()};
  if (average) inside.scale /= static_cast<double>(node.size());
  Slices::Plan plan;
  plan.bytes = static_cast<int64_t>(comm.smallest_node()) * kPartBytes;
  plan.bytes_in_flight = kBytesInFlight;
  Slices slices(stage, which, plan,
                [inside, between](Communicator& slice, const std::byte* input, std::byte* output,
                                  int64_t count) {
                  return OverNodes(slice, input, output, count, inside, between, PartIn::kOutput);
                });
  while (!slices.done()) co_await Until(slices);
  co_return slices.status();
}

}  // namespace horon
