// "average[:late=wait|keep]": out = postscale / n * sum over the n ranks of (prescale * in). One
// factor, applied once: integers are truncated once, towards zero.
//
// late=keep: if some rank is too late for it, each keeps what it has: the exact averages beside
// gossip, whose rounds are left out in the same way (ops/gossip/gossip.cc). Floating dtypes.
#include "runtime/op/op.h"

namespace horon {
namespace {

class Average final : public Op {
 public:
  explicit Average(WhenLate late) : late_(late) {}
  Status CheckAlone(const Request& request) const override {
    return late_ == WhenLate::kKeep ? CheckFloating(request) : Status::Ok();
  }
  WhenLate when_late() const override { return late_; }
  // Nobody is late for what a locked schedule runs.
  bool lockable(const Request&) const override { return late_ == WhenLate::kWait; }
  std::optional<Elementwise> elementwise() const override {
    return Elementwise{ReduceKind::kSum, /*average=*/true};
  }

 private:
  WhenLate late_;
};

Result<std::unique_ptr<Op>> MakeAverage(OpArguments& arguments) {
  const Result<std::string> late = arguments.Choice("late", {"wait", "keep"});
  HORON_TRY(late.status());
  const WhenLate when = late.value() == "keep" ? WhenLate::kKeep : WhenLate::kWait;
  return std::unique_ptr<Op>(std::make_unique<Average>(when));
}

const OpRegistrar kAverage{"average", MakeAverage};

}  // namespace
}  // namespace horon
