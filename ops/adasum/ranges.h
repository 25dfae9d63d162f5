// Which elements of a bucket's tensors a rank holds: one range per tensor. The ranges one after
// the other are a row of elements, in which messages are cut into chunks. Pure.
//
// Every tensor is halved by itself, not the bucket as a whole: so what is summed with what does
// not depend on the tensors that share the bucket, and fused tensors get the bits of lone ones.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/recycler.h"

namespace horon::adasum {

struct Range {
  int64_t begin = 0, count = 0;  // elements
};
using Ranges = RecycledVector<Range>;

inline int64_t Total(const Ranges& ranges) {
  int64_t total = 0;
  for (const Range& range : ranges) total += range.count;
  return total;
}

struct Halves {
  Ranges lower, upper;  // of an odd range the lower half is the smaller
};
inline Halves Halved(const Ranges& ranges) {
  Halves halves;
  halves.lower.reserve(ranges.size());
  halves.upper.reserve(ranges.size());
  for (const Range& range : ranges) {
    const int64_t half = range.count / 2;
    halves.lower.push_back({range.begin, half});
    halves.upper.push_back({range.begin + half, range.count - half});
  }
  return halves;
}

// Each range cut into the 2^depth pieces that `depth` halvings give, in ascending order.
inline Ranges Pieces(const Ranges& ranges, int depth) {
  Ranges pieces = ranges;
  for (int i = 0; i < depth; ++i) {
    const Halves halves = Halved(pieces);
    pieces.clear();
    for (size_t k = 0; k < halves.lower.size(); ++k) {
      pieces.push_back(halves.lower[k]);
      pieces.push_back(halves.upper[k]);
    }
  }
  return pieces;
}

// Calls f(i, begin, count, at) for every piece of the row's elements [from, to): `count` elements
// from `begin` on of the tensor of range i, which are the row's from `at` on.
template <typename F>
void ForPieces(const Ranges& ranges, int64_t from, int64_t to, F&& f) {
  int64_t at = 0;
  for (size_t i = 0; i < ranges.size() && at < to; ++i) {
    const int64_t first = std::max(from, at), last = std::min(to, at + ranges[i].count);
    if (first < last) f(i, ranges[i].begin + (first - at), last - first, first);
    at += ranges[i].count;
  }
}

}  // namespace horon::adasum
