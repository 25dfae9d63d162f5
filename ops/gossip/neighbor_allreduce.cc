// "neighbor_allreduce": output = self * own + sum over sources of r * d * theirs, where r is the
// weight that the receiver gives to the source and d the one that the sender gives to its
// destination. Whom a rank hears and sends to comes with each call (neighborhood.h). Floating.
//
// sums=rows|columns|both: the claim that these weights sum to 1, checked. hierarchical=1: between
// nodes, whose ranks average first. Sent per rank: S for each destination, and 8 bytes a tensor
// for its weight; hierarchical, and on GPUs, all ranks know all weights from the agreement.
#include <algorithm>
#include <map>
#include <memory>

#include "ops/gossip/gpu_mix.h"
#include "ops/gossip/mix.h"
#include "ops/gossip/neighborhood.h"
#include "ops/gossip/spec.h"
#include "ops/hierarchical.h"

namespace horon {
namespace {

gossip::Row RowOf(const Request& request) {
  gossip::Neighborhood says = gossip::NeighborhoodOf(request);
  gossip::Row row{says.self, std::move(says.sources), std::move(says.destinations), 0};
  for (gossip::Neighbors* list : {&row.from, &row.to}) {
    std::sort(list->begin(), list->end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
  }
  return row;
}

class NeighborAllreduce final : public Op {
 public:
  NeighborAllreduce(std::string sums, bool hierarchical)
      : sums_(std::move(sums)), hierarchical_(hierarchical) {}

  Status CheckAlone(const Request& request) const override { return CheckFloating(request); }

  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckFloatingAlike(by_rank, ranks));
    const auto between = hierarchical_ ? gossip::Between::kNodes : gossip::Between::kRanks;
    HORON_TRY(gossip::CheckNeighborhoods(by_rank, ranks, between, true));
    HORON_TRY(gossip::CheckSums(by_rank, sums_));
    if (by_rank[0]->device.kind == DeviceKind::kHost && !hierarchical_)
      return Agreement{};  // weights travel
    return Agreement{gossip::Told(by_rank)};
  }

  bool fusable() const override { return true; }
  bool fills_output() const override { return true; }
  int64_t MostFused(int64_t threshold, DeviceKind where) const override {
    return gossip::MostFused(threshold, where);
  }
  std::vector<WhenLate> late_choices() const override {
    return {WhenLate::kKeep, WhenLate::kFail};
  }

  bool TakesLane(Stage& stage) const override {
    return !hierarchical_ && gossip::MixesOverLane(stage);
  }

  Task Run(Stage& stage) override {
    HORON_CO_TRY(PrepareOutputs(stage));
    if (hierarchical_) co_return co_await BetweenNodes(stage);
    std::vector<gossip::Part> parts;
    for (const Segment& segment : stage.segments())
      parts.push_back({RowOf(*segment.request), segment.input, segment.output, segment.count});
    const gossip::Mixing mixing{stage.dtype(), stage.prescale() * stage.postscale(), true};
    co_return co_await gossip::MixBucket(stage, std::move(parts), mixing);
  }

  bool on_gpus(Stage& stage, bool everyone) const override {
    return gossip::MixesOnGpus(stage.comm(), hierarchical_, everyone);
  }

  Task RunOnGpus(GpuStage& stage) override {
    auto alike = Alike(stage);
    if (!alike.ok()) co_return alike.status();
    const int me = ParticipantOf(stage);
    std::vector<gossip::GpuRounds> mixes;
    for (auto& [told, which] : alike.value())
      mixes.push_back({{gossip::RowOf(told, me)}, std::move(which)});
    stage.SetAlgorithm("mixing on GPUs");
    Task mix = hierarchical_ ? gossip::MixNodesOnGpus(stage, std::move(mixes), /*average=*/true)
                             : gossip::MixOnGpus(stage, std::move(mixes),
                                                 stage.prescale() * stage.postscale());
    co_return co_await mix;
  }

 private:
  int ParticipantOf(Stage& stage) const {
    const Communicator& comm = stage.comm();
    return hierarchical_ ? comm.node_of(comm.rank()) : comm.rank();
  }

  // By all weights: tensors whose ranks agree on the same are mixed together.
  using ByWeights = std::map<std::vector<int64_t>, std::vector<size_t>>;
  Result<ByWeights> Alike(Stage& stage) const {
    ByWeights alike;
    for (size_t i = 0; i < stage.segments().size(); ++i) {
      const Segment& segment = stage.segments()[i];
      if (hierarchical_ && segment.request->splits[0] != ParticipantOf(stage))
        return Status::Internal("tensor '" + segment.request->name + "': rank " +
                                std::to_string(stage.comm().rank()) + " is not of node " +
                                std::to_string(segment.request->splits[0]) +
                                ", as its caller said");
      alike[segment.agreed->sizes].push_back(i);
    }
    return alike;
  }

  Task BetweenNodes(Stage& stage) const {
    auto alike = Alike(stage);
    if (!alike.ok()) co_return alike.status();
    for (auto& [told, which] : alike.value()) {
      const std::vector<gossip::Row> rows = {gossip::RowOf(told, ParticipantOf(stage))};
      NodeStep between = [&stage, rows](Communicator& across, std::byte* part, int64_t count) {
        return gossip::MixPart(stage, across, rows, part, count);
      };
      HORON_CO_TRY(co_await OverNodes(stage, which, /*average=*/true, between));
    }
    co_return Status::Ok();
  }

  std::string sums_;
  bool hierarchical_;
};

Result<std::unique_ptr<Op>> MakeNeighborAllreduce(OpArguments& arguments) {
  HORON_ASSIGN(std::string sums, arguments.Choice("sums", {"any", "rows", "columns", "both"}));
  HORON_ASSIGN(const bool hierarchical, gossip::ReadFlag(arguments, "hierarchical"));
  return std::unique_ptr<Op>(std::make_unique<NeighborAllreduce>(std::move(sums), hierarchical));
}

const OpRegistrar kNeighborAllreduce{"neighbor_allreduce", MakeNeighborAllreduce};

}  // namespace
}  // namespace horon
