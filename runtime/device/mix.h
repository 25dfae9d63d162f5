// Mixing of one's own values with those heard of neighbors: the arithmetic of a round of gossip.
//
// The gossip ops and the rounds between peers call the same function with the neighbors in the same
// order, and so have the same bits. Stateless; the holder of the baton.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"

namespace horon {

// A neighbor's values, and the weight that they are given.
struct Heard {
  const std::byte* data = nullptr;
  double weight = 0;
};

// out = factor * (self * own + sum of weight * other), the others in this order; in fp32 (fp64 for
// fp64), rounded once. Where the weights sum to 1, equal inputs come out as they are, to the last
// bit. In place allowed. Floating dtypes.
void MixHeard(DataType dtype, double factor, double self, const std::byte* own,
              std::span<const Heard> others, std::byte* out, int64_t count);

}  // namespace horon
