// What a sum over ranks of one machine must move, and nothing else: no names, no agreement, no
// errors. The benchmarks' yardstick: how near a runtime comes to the memory of the machine it runs
// on. Built as a shared library by the benchmark, called through ctypes by a process per rank.
//
//   in place  every rank's tensors lie in shared memory; each rank adds its slice where it lies and
//             writes the sum to all
//   streamed  private tensors, through a small shared buffer that stays in the caches
//   staged    private tensors, copied whole into shared memory and out again
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kMostRanks = 64;
constexpr int kSpins = 1000;                  // before yielding
constexpr int64_t kChunk = 64 << 10;          // elements of a streamed chunk, of all ranks' slices
constexpr int64_t kHeader = 64 * kMostRanks;  // bytes

struct alignas(64) Line {
  std::atomic<uint64_t> count{0};
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
};
World world;

struct Slice {
  int64_t begin, end;
};
Slice SliceOf(int rank, int64_t count) {
  return {count * rank / world.size, count * (rank + 1) / world.size};
}

// The sum over `from`, ranks ascending, goes to all of `to`.
void Add(float* const* from, float* const* to, int64_t begin, int64_t end) {
  if (world.size == 2) {  // as a compiler likes it best
    const float *a = from[0], *b = from[1];
    float *x = to[0], *y = to[1];
    for (int64_t i = begin; i < end; ++i) x[i] = y[i] = a[i] + b[i];
    return;
  }
  constexpr int64_t kBlock = 1024;
  float sum[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = std::min(kBlock, end - at);
    std::memcpy(sum, from[0] + at, static_cast<size_t>(n) * sizeof(float));
    for (int r = 1; r < world.size; ++r) {
      for (int64_t i = 0; i < n; ++i) sum[i] += from[r][at + i];
    }
    for (int r = 0; r < world.size; ++r)
      std::memcpy(to[r] + at, sum, static_cast<size_t>(n) * sizeof(float));
  }
}

void Copy(float* to, const float* from, int64_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// Everything but `mine`, which its owner reads from its own tensor and writes there.
void CopyOthers(float* to, const float* from, int64_t count, Slice mine) {
  Copy(to, from, mine.begin);
  Copy(to + mine.end, from + mine.end, count - mine.end);
}

// One chunk: what is staged in `rows` (a row a rank) is summed into the owners' rows, and to their
// tensors.
void SumOwn(float* const* rows, float* tensor, Slice mine) {
  float* from[kMostRanks];
  for (int r = 0; r < world.size; ++r) from[r] = r == world.rank ? tensor : rows[r];
  Add(from, from, mine.begin, mine.end);
}

}  // namespace

extern "C" {

void loops_open(void* shared, int rank, int size, int cores) {
  auto* const bytes = static_cast<char*>(shared);
  world = {reinterpret_cast<Line*>(bytes),
           reinterpret_cast<float*>(bytes + kHeader),
           rank,
           size,
           size > cores,
           0};
}

// Bytes before the floats, of which loops_in_place takes `capacity` a rank.
int64_t loops_header(void) { return kHeader; }

void loops_in_place(int64_t capacity, int64_t count) {
  float* rows[kMostRanks];
  for (int r = 0; r < world.size; ++r) rows[r] = world.floats + r * capacity;
  const Slice mine = SliceOf(world.rank, count);
  world.Meet();
  Add(rows, rows, mine.begin, mine.end);
  world.Meet();
}

// Two buffers in turn: one meeting a chunk tells that all have staged this one and are done with
// the last but one.
void loops_streamed(float* const* tensors, const int64_t* counts, int n) {
  int turn = 0;
  for (int t = 0; t < n; ++t) {
    for (int64_t at = 0; at < counts[t]; at += kChunk, turn ^= 1) {
      const int64_t count = std::min(kChunk, counts[t] - at);
      float* rows[kMostRanks];
      for (int r = 0; r < world.size; ++r)
        rows[r] = world.floats + (turn * world.size + r) * kChunk;
      const Slice mine = SliceOf(world.rank, count);
      CopyOthers(rows[world.rank], tensors[t] + at, count, mine);
      world.Meet();
      SumOwn(rows, tensors[t] + at, mine);
      world.Meet();
      // The owner of a slice wrote its sum to every row, ours too.
      CopyOthers(tensors[t] + at, rows[world.rank], count, mine);
    }
  }
}

void loops_staged(float* const* tensors, const int64_t* counts, int n, int64_t capacity) {
  float* rows[kMostRanks];
  for (int r = 0; r < world.size; ++r) rows[r] = world.floats + r * capacity;
  int64_t total = 0;
  for (int t = 0; t < n; ++t) {
    Copy(rows[world.rank] + total, tensors[t], counts[t]);
    total += counts[t];
  }
  const Slice mine = SliceOf(world.rank, total);
  world.Meet();
  Add(rows, rows, mine.begin, mine.end);
  world.Meet();
  total = 0;
  for (int t = 0; t < n; ++t) {
    Copy(tensors[t], rows[world.rank] + total, counts[t]);
    total += counts[t];
  }
}

}  // extern "C"
