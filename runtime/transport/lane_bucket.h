// What a lane is told of one bucket, and who its members are. Used by lane.h and lane_stream.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/counters.h"
#include "runtime/base/status.h"
#include "runtime/device/kernels.h"
#include "runtime/transport/segment.h"
#include "runtime/transport/shared_regions.h"

namespace horon {

// What is computed in one go, then copied to the others out of the cache.
inline constexpr int64_t kLaneBlockBytes = 8 << 10;

// One tensor of a bucket. Output may equal input.
struct LaneTensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;
};

struct LaneReduction {
  DataType dtype = DataType::kFloat32;
  ReduceKind kind = ReduceKind::kSum;
  double prescale = 1.0;
  double scale = 1.0;       // of the result
  uint64_t bucket = 0;      // tells this bucket from others; the same on all members
  int64_t chunk_bytes = 0;  // of a chunk, the same on all members; 0 or more than a slot: a slot
};

// A lane of the node's segment, and the ranks that it serves.
struct LaneGroup {
  std::shared_ptr<SharedSegment> segment;
  std::shared_ptr<const SharedRegions> regions;
  int lane = 0;
  std::vector<int> members;     // local ranks, ascending
  int me = 0;                   // my index among them
  Counter* in_place = nullptr;  // buckets that were reduced in place
  Counter* swapped = nullptr;   // rows that were swapped
  Counter* past_caches = nullptr;  // chunks that were packed past the caches
  // A cache line that takes so long from another member's caches had better come out of memory.
  // Cores with a cache between them need up to 40 ns, others 90 to 150 (measured on Zen 4).
  int64_t far_ns = Config{}.shm_far_ns;
  bool crowded = false;  // the node has more ranks than cores

  int size() const { return static_cast<int>(members.size()); }
  LaneWords& words(int member) const {
    return segment->lane(lane, members[static_cast<size_t>(member)]);
  }
  LaneWords& mine() const { return words(me); }
  uint64_t slots() const { return static_cast<uint64_t>(segment->shape().slots); }
  // A member's slot for a chunk, counted since the segment was made.
  std::byte* slot(int member, uint64_t chunk) const {
    return segment->slot(lane, members[static_cast<size_t>(member)],
                         static_cast<int>(chunk % slots()));
  }
  std::byte* row(int member) const {
    return segment->row(lane, members[static_cast<size_t>(member)]);
  }
  // All members have done that with all chunks before this one, I included.
  bool AllReached(std::atomic<uint64_t> LaneWords::* word, uint64_t chunk) const {
    for (int m = 0; m < size(); ++m) {
      if ((words(m).*word).load(std::memory_order_acquire) < chunk) return false;
    }
    return true;
  }
  // Nobody needs any more what lies where this chunk goes.
  bool SlotFree(uint64_t chunk) const {
    return chunk < slots() || AllReached(&LaneWords::taken, chunk + 1 - slots());
  }
  // Before I say that chunk `first` is packed: which bucket begins with it, and how it lies.
  void Announce(uint64_t first, uint64_t bucket, uint64_t layout) const {
    const size_t place = first % slots();
    mine().bucket[place].store(bucket, std::memory_order_relaxed);
    mine().layout[place].store(layout, std::memory_order_relaxed);
  }
  // When all have packed it: whether all said the same bucket.
  Status SameBucket(uint64_t first, uint64_t bucket) const {
    for (int m = 0; m < size(); ++m) {
      if (words(m).bucket[first % slots()].load(std::memory_order_relaxed) == bucket) continue;
      return Status::Internal("local rank " + std::to_string(members[static_cast<size_t>(m)]) +
                              " runs another bucket of tensors than this rank");
    }
    return Status::Ok();
  }
  bool SameLayout(uint64_t first, uint64_t layout) const {
    for (int m = 0; m < size(); ++m) {
      if (words(m).layout[first % slots()].load(std::memory_order_relaxed) != layout) return false;
    }
    return true;
  }
  // I am through with all chunks before this one, whatever came of them.
  void MoveTo(uint64_t chunk) const {
    for (auto* const word : {&mine().packed, &mine().reduced, &mine().taken})
      word->store(chunk, std::memory_order_release);
    RingOthers();
  }
  void RingOthers() const {
    const int from = members[static_cast<size_t>(me)];
    for (const int member : members) {
      if (member != from) segment->Ring(member, from, Doorbell::kBackground | Doorbell::kLender);
    }
  }
};

}  // namespace horon
