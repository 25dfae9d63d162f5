// What a sum over ranks of one machine must move, and nothing else: no names, no agreement, no
// errors. The benchmarks' yardstick: how near a runtime comes to the memory of the machine it runs
// on. Built as a shared library by the benchmark, called through ctypes by a process per rank.
//
//   in place  every rank's tensors lie in shared memory; each rank adds its slice where it lies and
//             writes the sum to all
//   streamed  private tensors, through a small shared buffer that stays in the caches
//   staged    private tensors, copied whole into shared memory and out again
//
// and the mean of two ranks' tensors, which is what they mix with one neighbor:
//
//   mixed     private tensors, each copied once through a small shared buffer; the means go where
//             the tensors lie, or to others
#include "world.h"

namespace {

using namespace reference;

// The sum over the ranks' floats, ascending, goes to all of them.
void Add(float* const* rows, int64_t count) {
  if (world.size == 2) {  // as a compiler likes it best
    float* __restrict a = rows[0], * __restrict b = rows[1];
    for (int64_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
    return;
  }
  constexpr int64_t kBlock = 1024;
  float sum[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    const auto bytes = static_cast<size_t>(n) * sizeof(float);
    std::memcpy(sum, rows[0] + at, bytes);
    for (int r = 1; r < world.size; ++r) {
      for (int64_t i = 0; i < n; ++i) sum[i] += rows[r][at + i];
    }
    for (int r = 0; r < world.size; ++r) std::memcpy(rows[r] + at, sum, bytes);
  }
}

// Sums this rank's slice of floats that all lie in shared memory, where `row(rank)` says.
template <typename RowOf>
void AddShared(RowOf row, int64_t count) {
  const Slice mine = world.SliceOf(world.rank, {0, count});
  float* rows[kMostRanks];
  for (int r = 0; r < world.size; ++r) rows[r] = row(r) + mine.begin;
  world.Meet();
  Add(rows, mine.end - mine.begin);
  world.Meet();
}

// One chunk of the row on its way through the shared buffer: each rank reads its slice from its own
// tensors, and the others' come there and back.
struct Chunk {
  const Row& row;
  int64_t number;
  Slice whole = row.chunk(number), mine = world.SliceOf(world.rank, whole);
  Slice before = {whole.begin, mine.begin}, after = {mine.end, whole.end};

  // Where a rank's float is staged, by its place in the row.
  float* Staged(int rank, int64_t at) const {
    const int64_t turn = number % 2;
    return world.floats + (turn * world.size + rank) * kChunk + (at - whole.begin);
  }

  void Stage() const {
    for (const Slice& part : {before, after}) row.CopyTo(Staged(world.rank, part.begin), part);
  }

  // To the owner's tensors, and to where the others collect it.
  void Sum() const {
    row.Each(mine, [&](auto, float* piece, int64_t at, int64_t count) {
      float* rows[kMostRanks];
      for (int r = 0; r < world.size; ++r) rows[r] = r == world.rank ? piece : Staged(r, at);
      Add(rows, count);
    });
  }

  void Collect() const {
    for (const Slice& part : {before, after}) row.CopyFrom(Staged(world.rank, part.begin), part);
  }
};

}  // namespace

extern "C" {

void loops_in_place(float* const* rows, int64_t count) {
  AddShared([rows](int rank) { return rows[rank]; }, count);
}

// Two buffers in turn and one meeting a chunk: while a rank stages one, others still sum the one
// before, and it has just collected the last but one, which lay where it stages.
void loops_streamed(float* const* tensors, const int64_t* counts, int n) {
  const Row row(tensors, counts, n);
  for (int64_t k = 0; k < row.chunks() + 2; ++k) {
    if (k >= 2) Chunk{row, k - 2}.Collect();
    if (k < row.chunks()) Chunk{row, k}.Stage();
    if (k >= 1 && k <= row.chunks()) Chunk{row, k - 1}.Sum();
    if (k <= row.chunks()) world.Meet();
  }
}

// Two buffers in turn: who meets for a chunk has mixed the one before. `means` may be the tensors.
void loops_mixed(float* const* tensors, const int64_t* counts, int n, float* const* means) {
  const Row row(tensors, counts, n);
  for (int64_t k = 0; k < row.chunks(); ++k) {
    const Chunk chunk{row, k};
    row.CopyTo(chunk.Staged(world.rank, chunk.whole.begin), chunk.whole);
    world.Meet();
    row.Each(chunk.whole, [&](auto t, const float* mine, int64_t at, int64_t count) {
      const float* const theirs = chunk.Staged(1 - world.rank, at);
      float* const mean = means[t] + (mine - tensors[t]);
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) mean[i] = (mine[i] + theirs[i]) / 2;
    });
  }
  world.Meet();
}

void loops_staged(float* const* tensors, const int64_t* counts, int n, int64_t capacity) {
  const Row row(tensors, counts, n);
  const auto staged = [capacity](int rank) { return world.floats + rank * capacity; };
  row.CopyTo(staged(world.rank), row.whole());
  AddShared(staged, row.whole().end);
  row.CopyFrom(staged(world.rank), row.whole());
}

}  // extern "C"
