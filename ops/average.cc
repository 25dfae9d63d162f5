// "average": out = postscale / n * sum over the n ranks of (prescale * in). One factor, applied
// once: integers are truncated once, towards zero.
#include "runtime/op/op.h"

namespace horon {
namespace {

class Average final : public Op {
 public:
  std::optional<Elementwise> elementwise() const override {
    return Elementwise{ReduceKind::kSum, /*average=*/true};
  }
};

const OpRegistrar kAverage{"average", MakeOp<Average>};

}  // namespace
}  // namespace horon
