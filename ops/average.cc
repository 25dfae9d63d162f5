// "average[:late=wait|keep|fail]": out = postscale / n * sum over the n ranks of (prescale * in).
// One factor, applied once: integers are truncated once, towards zero.
//
// late=keep: if some rank is too late for it, each keeps what it has: the exact averages beside
// gossip, whose rounds are left out in the same way (ops/gossip/gossip.cc). Floating dtypes.
#include "runtime/op/op.h"

namespace horon {
namespace {

class Average final : public Op {
 public:
  Status CheckAlone(const Request& request) const override {
    return when_late() == WhenLate::kKeep ? CheckFloating(request) : Status::Ok();
  }
  std::vector<WhenLate> late_choices() const override {
    return {WhenLate::kWait, WhenLate::kKeep, WhenLate::kFail};
  }
  std::optional<Elementwise> elementwise() const override {
    return Elementwise{ReduceKind::kSum, /*average=*/true};
  }
};

const OpRegistrar kAverage{"average", MakeOp<Average>};

}  // namespace
}  // namespace horon
