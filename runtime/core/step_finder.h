// StepFinder: finds the steps of a training job in the stream of tensors that start. A step ends
// when a tensor comes that it has had already. Pure. Part of the Autotuner.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_set>

namespace horon {

struct FoundStep {
  std::chrono::nanoseconds time{};
  int64_t bytes = 0;

  bool operator==(const FoundStep&) const = default;
};

class StepFinder {
 public:
  using Clock = std::chrono::steady_clock;

  // The step that this tensor's start ends, if any. The first, of unknown begin, is none.
  std::optional<FoundStep> Saw(uint64_t tensor, int64_t bytes, Clock::time_point now);

 private:
  static constexpr size_t kMost = 65536;  // tensors; a job of which none comes again has no steps

  std::unordered_set<uint64_t> seen_;
  int64_t bytes_ = 0;
  Clock::time_point begun_;
  bool whole_ = false;
};

}  // namespace horon
