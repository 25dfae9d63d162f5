// "product": out = postscale * product over ranks of (prescale * in).
#include "runtime/op/op.h"

namespace horon {
namespace {

class Product final : public Op {
 public:
  std::optional<Elementwise> elementwise() const override {
    return Elementwise{ReduceKind::kProduct};
  }
};

const OpRegistrar kProduct{"product", MakeOp<Product>};

}  // namespace
}  // namespace horon
