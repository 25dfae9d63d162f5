// What an Adasum of two ranks of one machine must compute and move, and nothing else: private
// tensors, of which each rank combines one half. A first pass over the halves takes the dot product
// and the norms of each tensor, a second one combines. Chunk by chunk, so that what one rank has
// just written the other finds in the caches, with one meeting each.
//
// Built as a shared library by the benchmark, called through ctypes by a process per rank.
#include "world.h"

namespace {

using namespace reference;

struct Sums {
  double dot, first, second;  // of the ranks' vectors, and their squared norms
};

void AddTo(Sums* sums, const float* first, const float* second, int64_t count) {
  double dot = 0, firsts = 0, seconds = 0;
#pragma omp simd reduction(+ : dot, firsts, seconds)
  for (int64_t i = 0; i < count; ++i) {
    const double a = first[i], b = second[i];
    dot += a * b;
    firsts += a * a;
    seconds += b * b;
  }
  *sums = {sums->dot + dot, sums->first + firsts, sums->second + seconds};
}

// To its own tensor, and to where the other rank reads it: in place of what that one staged.
void Combine(float* __restrict own, float* __restrict other, float of_own, float of_other,
             int64_t count) {
  for (int64_t i = 0; i < count; ++i) own[i] = other[i] = of_own * own[i] + of_other * other[i];
}

float Factor(double dot, double norm) {
  return norm > 0 ? static_cast<float>(1 - dot / (2 * norm)) : 1.0f;
}

}  // namespace

// `capacity` floats a rank lie behind the lines: for its half, at the places that it has in the
// row, and from the middle on for its sums.
extern "C" void loops_two_pass(float* const* tensors, const int64_t* counts, int n,
                               int64_t capacity) {
  const Row row(tensors, counts, n);
  const int me = world.rank, peer = 1 - me;
  float* const mine = world.floats + me * capacity;
  float* const theirs = world.floats + peer * capacity;
  Sums* sums[2];
  for (int r = 0; r < 2; ++r)
    sums[r] = reinterpret_cast<Sums*>(world.floats + r * capacity + capacity / 2);

  std::fill_n(sums[me], n, Sums{});
  for (int64_t k = 0; k < row.chunks(); ++k) {
    const Slice half = world.SliceOf(peer, row.chunk(k));
    row.CopyTo(theirs + half.begin, half);
    world.Meet();
    row.Each(world.SliceOf(me, row.chunk(k)), [&](auto t, float* own, int64_t at, int64_t count) {
      const float* const vectors[2] = {me == 0 ? own : mine + at, me == 0 ? mine + at : own};
      AddTo(&sums[me][t], vectors[0], vectors[1], count);
    });
  }
  world.Meet();
  std::vector<float> factors(2 * static_cast<size_t>(n));
  for (int t = 0; t < n; ++t) {
    const Sums &a = sums[0][t], &b = sums[1][t];
    const double dot = a.dot + b.dot;
    factors[2 * t] = Factor(dot, a.first + b.first);
    factors[2 * t + 1] = Factor(dot, a.second + b.second);
  }
  for (int64_t k = 0; k < row.chunks(); ++k) {
    row.Each(world.SliceOf(me, row.chunk(k)), [&](auto t, float* own, int64_t at, int64_t count) {
      Combine(own, mine + at, factors[2 * t + me], factors[2 * t + peer], count);
    });
    world.Meet();
    const Slice half = world.SliceOf(peer, row.chunk(k));
    row.CopyFrom(theirs + half.begin, half);
  }
}
