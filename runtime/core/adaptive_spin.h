// AdaptiveSpin: whether to look for progress for a while before sleeping, judged by whether that
// has brought any lately. Holder of the baton only.
//
// Right where an answer takes microseconds. Where a message takes milliseconds of a link it ends in
// the sleep that it was to avoid, and meanwhile ranks and the kernel's network, which would move
// that message, share a core with those that look.
#pragma once

#include <algorithm>
#include <cstdint>

namespace horon {

class AdaptiveSpin {
 public:
  static constexpr int kMisses = 4;  // so many in a row, then
  static constexpr int kEvery = 16;  // one time in so many only, until one brings something

  // Whether to look this time.
  bool Due() { return misses_ < kMisses || ++skipped_ % kEvery == 0; }
  // `found`: progress, soon enough that sleeping would have been slower.
  void Learn(bool found) { misses_ = found ? 0 : std::min(misses_ + 1, kMisses); }

 private:
  int misses_ = 0;
  uint32_t skipped_ = 0;
};

}  // namespace horon
