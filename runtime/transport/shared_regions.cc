#include "runtime/transport/shared_regions.h"

namespace horon {

void SharedRegions::Add(std::shared_ptr<const SharedRegion> region) {
  const MutexLock lock(mutex_);
  by_begin_[region->mine] = std::move(region);
  any_.store(true, std::memory_order_release);
}

void SharedRegions::Remove(const SharedRegion& region) {
  const MutexLock lock(mutex_);
  by_begin_.erase(region.mine);
  any_.store(!by_begin_.empty(), std::memory_order_release);
}

std::shared_ptr<const SharedRegion> SharedRegions::Find(const std::byte* at, int64_t bytes) const {
  if (!any_.load(std::memory_order_acquire)) return nullptr;
  const MutexLock lock(mutex_);
  const auto after = by_begin_.upper_bound(at);
  if (after == by_begin_.begin()) return nullptr;
  const auto& region = std::prev(after)->second;
  return at + bytes <= region->mine + region->bytes ? region : nullptr;
}

}  // namespace horon
