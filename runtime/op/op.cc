#include "runtime/op/op.h"

#include "runtime/op/gpu_stage.h"

namespace horon {

Result<Agreement> Op::Check(std::span<const Request* const> by_rank,
                            std::span<const int> ranks) const {
  HORON_TRY(CheckCommon(by_rank, ranks));
  HORON_TRY(CheckShapes(by_rank, ranks));
  const Request& request = *by_rank[0];
  if (const auto reduction = elementwise()) {
    const bool scaled = reduction->average || request.prescale != 1.0 || request.postscale != 1.0;
    if (!Supports(reduction->kind, request.dtype, scaled)) {
      return Status::InvalidArgument("Op '" + request.op + "'" + (scaled ? " with scaling" : "") +
                                     " means nothing for tensor '" + request.name + "' of " +
                                     std::string(NameOf(request.dtype)) + ".");
    }
  }
  return Agreement{};
}

Task Op::Run(Stage&) {
  co_return Status::Internal("an elementwise op is run by the engine, not step by step");
}

Task Op::RunOverNodes(GpuStage&) {
  co_return Status::Unsupported("this op has no way between the GPUs of several nodes");
}

Task Op::RunOnGpus(GpuStage& stage) {
  const bool everyone = stage.near().size() == static_cast<size_t>(stage.comm().size());
  if (everyone) co_return Enqueue(stage);
  co_return co_await RunOverNodes(stage);
}

Status PrepareOutputs(Stage& stage) {
  for (size_t i = 0; i < stage.segments().size(); ++i) {
    const Segment& segment = stage.segments()[i];
    if (segment.output == nullptr) HORON_TRY(stage.AllocateOutput(i, segment.request->shape));
  }
  return Status::Ok();
}

}  // namespace horon
