// "sum": out = postscale * sum over ranks of (prescale * in).
#include "runtime/op/op.h"

namespace horon {
namespace {

class Sum final : public Op {
 public:
  std::optional<Elementwise> elementwise() const override { return Elementwise{ReduceKind::kSum}; }
};

const OpRegistrar kSum{"sum", MakeOp<Sum>};

}  // namespace
}  // namespace horon
