#include "runtime/core/step_finder.h"

namespace horon {

std::optional<FoundStep> StepFinder::Saw(uint64_t tensor, int64_t bytes, Clock::time_point now) {
  std::optional<FoundStep> step;
  if (seen_.size() >= kMost) {
    seen_.clear();
    whole_ = false;
  }
  if (seen_.contains(tensor)) {
    if (whole_) step = FoundStep{now - begun_, bytes_};
    seen_.clear();
    bytes_ = 0;
    begun_ = now;
    whole_ = true;
  }
  seen_.insert(tensor);
  bytes_ += bytes;
  return step;
}

}  // namespace horon
