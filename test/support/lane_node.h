// Lanes alone: ranks are threads, the segment is heap, the regions are mapped in this process.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/transport/lane.h"

namespace horon::test {

inline constexpr int64_t kRegionFloats = 300000;

// A segment of all ranks, and memory of each that all others know.
struct LaneNode {
  explicit LaneNode(int ranks) {
    SegmentShape shape = SegmentShape::For(ranks, 4096, 64 << 10);
    shape.row_bytes = 512 << 10;
    segment = SharedSegment::InProcess(shape).value();
    for (int r = 0; r < ranks; ++r)
      copies.push_back(SharedMemory::Make(kRegionFloats * 4, "lane test").value());
    for (int r = 0; r < ranks; ++r) {
      regions.push_back(std::make_shared<SharedRegions>());
      auto region = std::make_shared<SharedRegion>();
      region->id = 1;
      region->mine = copies[static_cast<size_t>(r)]->data();
      region->bytes = kRegionFloats * 4;
      region->copies = copies;
      regions.back()->Add(std::move(region));
    }
  }
  LaneGroup Group(int me) {
    LaneGroup group{segment, regions[static_cast<size_t>(me)], 0, {}, me, &in_place, nullptr};
    for (size_t r = 0; r < copies.size(); ++r) group.members.push_back(static_cast<int>(r));
    return group;
  }
  float* At(int rank, int64_t offset) {
    return reinterpret_cast<float*>(copies[static_cast<size_t>(rank)]->data()) + offset;
  }

  std::shared_ptr<SharedSegment> segment;
  std::vector<std::shared_ptr<SharedMemory>> copies;
  std::vector<std::shared_ptr<SharedRegions>> regions;
  Counter in_place;
};

// Runs `body(rank)` on a thread for each rank.
inline void OnRanks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

inline Status Drive(Task task) {
  RootTask root(std::move(task));
  while (!root.done())
    if (!root.Advance()) std::this_thread::yield();
  return root.status();
}

// What a rank reduces: `count` values in the region at `offset`, or elsewhere where that is -1.
struct Piece {
  int64_t offset, count;
};

// Each element is rank + 1 + its place; sums over all ranks are exact.
inline float Input(int rank, int64_t i) { return static_cast<float>(rank + 1 + i % 100); }
inline float Sum(int ranks, int64_t i) {
  return static_cast<float>(ranks * (ranks + 1) / 2 + ranks * (i % 100));
}

// One bucket of one rank; the number of wrong elements.
inline int64_t Reduce(Lane& lane, LaneNode& node, int rank, int ranks,
                      const std::vector<Piece>& pieces, uint64_t bucket) {
  std::vector<std::vector<float>> elsewhere(pieces.size());
  RecycledVector<LaneTensor> tensors;
  std::vector<float*> values;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [offset, count] = pieces[i];
    if (offset < 0) elsewhere[i].resize(static_cast<size_t>(count));
    float* const at = offset < 0 ? elsewhere[i].data() : node.At(rank, offset);
    for (int64_t j = 0; j < count; ++j) at[j] = Input(rank, j);
    values.push_back(at);
    tensors.push_back({reinterpret_cast<std::byte*>(at), reinterpret_cast<std::byte*>(at), count});
  }
  LaneReduction reduction;
  reduction.bucket = bucket;
  const uint64_t ticket = lane.TakeTicket();
  if (!Drive(lane.Allreduce(ticket, tensors, reduction)).ok()) return -1;
  int64_t wrong = 0;
  for (size_t i = 0; i < pieces.size(); ++i)
    for (int64_t j = 0; j < pieces[i].count; ++j) wrong += values[i][j] != Sum(ranks, j);
  return wrong;
}

}  // namespace horon::test
