#include "runtime/transport/lane_in_place.h"

namespace horon {
namespace {

uint64_t Mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

InPlace::InPlace(std::span<const LaneTensor> tensors, int64_t element,
                 const SharedRegions& regions) {
  uint64_t hash = 1;
  for (const LaneTensor& t : tensors) {
    auto region = t.input == t.output ? regions.Find(t.output, t.count * element) : nullptr;
    if (region == nullptr) return;
    const int64_t offset = t.output - region->mine;
    hash = Mixed(Mixed(hash, region->id), static_cast<uint64_t>(offset));
    places_.push_back({std::move(region), offset});
  }
  layout_ = hash | 1;
}

}  // namespace horon
