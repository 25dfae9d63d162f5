// Where the pieces of a bucket's tensors lie in one block of a GPU's memory: every tensor is cut
// into `pieces` pieces of equal length (the last ones are shorter, or empty), and the first pieces
// of all tensors lie together, then the second ones. So what a rank holds after some halvings is
// one run of bytes, and a piece of all tensors is as long as another one. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/batch.h"
#include "runtime/op/op.h"

namespace horon::adasum {

class GpuBlock {
 public:
  GpuBlock(std::span<const Segment> segments, int64_t element, int64_t pieces) : pieces_(pieces) {
    for (const Segment& segment : segments) {
      const int64_t length = (segment.count + pieces - 1) / pieces;
      counts_.push_back(segment.count);
      lengths_.push_back(length);
      places_.push_back(piece_bytes_);
      piece_bytes_ += AlignedForGpus(length * element);
    }
  }

  int64_t pieces() const { return pieces_; }
  int64_t tensors() const { return static_cast<int64_t>(counts_.size()); }
  int64_t piece_bytes() const { return piece_bytes_; }
  int64_t bytes() const { return pieces_ * piece_bytes_; }

  // Elements of a piece, its first one in its tensor, and where it lies among those of its number.
  int64_t CountOf(size_t tensor, int64_t piece) const {
    return std::clamp<int64_t>(counts_[tensor] - piece * lengths_[tensor], 0, lengths_[tensor]);
  }
  int64_t BeginOf(size_t tensor, int64_t piece) const { return piece * lengths_[tensor]; }
  int64_t PlaceOf(size_t tensor) const { return places_[tensor]; }

 private:
  int64_t pieces_, piece_bytes_ = 0;
  std::vector<int64_t> counts_, lengths_, places_;
};

}  // namespace horon::adasum
