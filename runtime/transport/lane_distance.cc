#include "runtime/transport/lane_distance.h"

#include <algorithm>
#include <chrono>

namespace horon {

void LaneDistance::Look(int m, const std::atomic<uint64_t>& beat) {
  using std::chrono::steady_clock;
  const auto before = steady_clock::now();
  const auto start = steady_clock::now();
  const uint64_t now = beat.load(std::memory_order_acquire);
  const auto end = steady_clock::now();
  uint64_t& seen = seen_[static_cast<size_t>(m)];
  if (now == seen) return;  // it lay in my own cache
  seen = now;
  Saw(std::max<int64_t>(0, std::chrono::nanoseconds((end - start) - (start - before)).count()));
}

void LaneDistance::Saw(int64_t ns) {
  const double share = ns >= far_ns_ ? 1 : 0;
  far_share_ = far_share_ < 0 ? share : far_share_ + kNewest * (share - far_share_);
}

}  // namespace horon
