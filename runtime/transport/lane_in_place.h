// InPlace: the tensors of a bucket that all lie in regions which every member of a lane has mapped,
// and where each member's copies are. Part of LaneStream; holder of the baton only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/recycler.h"
#include "runtime/transport/lane_bucket.h"
#include "runtime/transport/shared_regions.h"

namespace horon {

class InPlace {
 public:
  InPlace() = default;
  // Nothing, with a layout of 0, unless each tensor is its own output and lies in a region.
  InPlace(std::span<const LaneTensor> tensors, int64_t element, const SharedRegions& regions);

  // What lies where, in one word: members with the same can reduce in place. 0: not here.
  uint64_t layout() const { return layout_; }
  // Where a rank of the node has its copy of a tensor of the bucket.
  std::byte* Copy(size_t tensor, int local_rank) const {
    const Place& place = places_[tensor];
    return place.region->copies[static_cast<size_t>(local_rank)]->data() + place.offset;
  }

 private:
  struct Place {
    std::shared_ptr<const SharedRegion> region;  // stays mapped while the bucket is under way
    int64_t offset;
  };
  RecycledVector<Place> places_;  // by tensor
  uint64_t layout_ = 0;
};

}  // namespace horon
