// "barrier": completes nowhere before it was submitted everywhere. Moves no tensor.
#include "runtime/op/op.h"

namespace horon {
namespace {

class BarrierOp final : public Op {
 public:
  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckCommon(by_rank, ranks, "BARRIER"));
    return Agreement{};
  }
  Task Run(Stage& stage) override { co_return co_await Barrier(stage.comm()); }
};

const OpRegistrar kBarrier{"barrier", MakeOp<BarrierOp>, OpUse::kCall};

}  // namespace
}  // namespace horon
