#include "ops/adasum/tree.h"

#include <bit>
#include <cstddef>

namespace horon::adasum {

Tree::Tree(std::span<const int64_t> leaves, int me) {
  const int n = static_cast<int>(leaves.size());
  const int p = static_cast<int>(std::bit_floor(leaves.size()));
  const auto own = [&](int i) { return static_cast<double>(leaves[static_cast<size_t>(i)]); };
  const auto folded_in = [&](int i) { return i + p < n ? own(i) + own(i + p) : own(i); };
  if (me >= p) {
    fold_.push_back(Meeting{me - p, false, own(me - p), own(me), 0});
    return;
  }
  if (me + p < n) fold_.push_back(Meeting{me + p, true, own(me), own(me + p), 0});
  for (int level = 0; (1 << level) < p; ++level) {
    const int width = 1 << level;  // participants on each side
    const int left = me & ~(2 * width - 1);
    Meeting meeting{me ^ width, (me & width) == 0, 0, 0, level};
    for (int i = 0; i < width; ++i) {
      meeting.leaves_a += folded_in(left + i);
      meeting.leaves_b += folded_in(left + width + i);
    }
    levels_.push_back(meeting);
  }
}

}  // namespace horon::adasum
