// SharedRegions: memory for users' tensors that every rank of this node has mapped, so that a lane
// can reduce them where they lie (lane_stream.h). Filled by c_memory.cc, on users' threads; asked
// by the holder of the baton.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/shared_memory.h"

namespace horon {

struct SharedRegion {
  uint64_t id = 0;  // the same on all ranks that made it, and no other's
  std::byte* mine = nullptr;
  int64_t bytes = 0;
  std::vector<std::shared_ptr<SharedMemory>> copies;  // by local rank; null: has none
};

class SharedRegions {
 public:
  void Add(std::shared_ptr<const SharedRegion> region);
  void Remove(const SharedRegion& region);
  // The region that holds all of [at, at + bytes) here; null: none does.
  std::shared_ptr<const SharedRegion> Find(const std::byte* at, int64_t bytes) const;

 private:
  mutable Mutex mutex_;
  std::atomic<bool> any_{false};  // spares those who have no regions the lock
  std::map<const std::byte*, std::shared_ptr<const SharedRegion>> by_begin_
      HORON_GUARDED_BY(mutex_);
};

}  // namespace horon
