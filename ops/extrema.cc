// "min" and "max", element by element. A NaN on any rank wins.
#include "runtime/op/op.h"

namespace horon {
namespace {

class Min final : public Op {
 public:
  std::optional<Elementwise> elementwise() const override { return Elementwise{ReduceKind::kMin}; }
};

class Max final : public Op {
 public:
  std::optional<Elementwise> elementwise() const override { return Elementwise{ReduceKind::kMax}; }
};

const OpRegistrar kMin{"min", MakeOp<Min>};
const OpRegistrar kMax{"max", MakeOp<Max>};

}  // namespace
}  // namespace horon
