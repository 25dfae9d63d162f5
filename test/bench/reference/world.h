// What the reference loops share: ranks that meet in shared memory, and tensors as one row of
// elements. Each loop's library is one source file that includes this one.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

namespace reference {

constexpr int kMostRanks = 64;
constexpr int kSpins = 1000;                  // before yielding
constexpr int64_t kChunk = 64 << 10;          // elements of a chunk, of all ranks' slices
constexpr int64_t kHeader = 64 * kMostRanks;  // bytes

struct alignas(64) Line {
  std::atomic<uint64_t> count{0};
};

struct Slice {
  int64_t begin, end;
};

struct World {
  Line* lines;
  float* floats;  // behind the lines
  int rank, size;
  bool crowded;  // more ranks than cores
  uint64_t passed;

  void Meet() {
    lines[rank].count.store(++passed, std::memory_order_release);
    for (int r = 0; r < size; ++r) {
      for (int looks = 0; lines[r].count.load(std::memory_order_acquire) < passed; ++looks) {
        if (crowded || looks > kSpins) sched_yield();
      }
    }
  }

  Slice SliceOf(int owner, Slice whole) const {
    const int64_t count = whole.end - whole.begin;
    return {whole.begin + count * owner / size, whole.begin + count * (owner + 1) / size};
  }
};
inline World world;

// Tensors one after the other.
class Row {
 public:
  Row(float* const* tensors, const int64_t* counts, int n) : tensors_(tensors), starts_{0} {
    for (int t = 0; t < n; ++t) starts_.push_back(starts_.back() + counts[t]);
  }

  Slice whole() const { return {0, starts_.back()}; }
  int64_t chunks() const { return (starts_.back() + kChunk - 1) / kChunk; }
  Slice chunk(int64_t k) const { return {k * kChunk, std::min((k + 1) * kChunk, starts_.back())}; }

  // visit(t, piece, at, count) for each tensor's piece of the slice; `at` is its place in the row.
  template <typename Visit>
  void Each(Slice slice, Visit visit) const {
    if (slice.begin >= slice.end) return;
    auto t = std::upper_bound(starts_.begin(), starts_.end(), slice.begin) - starts_.begin() - 1;
    for (int64_t at = slice.begin; at < slice.end; at = starts_[++t]) {
      const int64_t end = std::min(slice.end, starts_[t + 1]);
      if (end > at) visit(t, tensors_[t] + (at - starts_[t]), at, end - at);
    }
  }

  void CopyTo(float* to, Slice slice) const {
    Each(slice, [&](auto, const float* piece, int64_t at, int64_t count) {
      std::memcpy(to + (at - slice.begin), piece, static_cast<size_t>(count) * sizeof(float));
    });
  }

  void CopyFrom(const float* from, Slice slice) const {
    Each(slice, [&](auto, float* piece, int64_t at, int64_t count) {
      std::memcpy(piece, from + (at - slice.begin), static_cast<size_t>(count) * sizeof(float));
    });
  }

 private:
  float* const* tensors_;
  std::vector<int64_t> starts_;
};

}  // namespace reference

extern "C" void loops_open(void* shared, int rank, int size, int cores) {
  using namespace reference;
  auto* const bytes = static_cast<char*>(shared);
  world = {reinterpret_cast<Line*>(bytes),
           reinterpret_cast<float*>(bytes + kHeader),
           rank,
           size,
           size > cores,
           0};
}

extern "C" void loops_meet() { reference::world.Meet(); }
