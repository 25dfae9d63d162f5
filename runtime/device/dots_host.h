// Inner products of vectors: what the loops under AddDots add up in (loops_isa_host.h).
//
// fp32 in double: sixteen running sums, whatever the width of the registers: element i goes to sum
// i % 16, and the sixteen are added in one fixed order, so that the bits do not depend on the
// instruction set. A product of two fp32 values is exact in double, so that a fused multiply-add
// gives the same bits as two instructions.
//
// The 16-bit floats in fp32, which holds their products exactly: thirty-two running sums, of at
// most kDotBlock / 32 products each, which are then added in one order, too. bf16 has fp32's own
// range, so blocks of which such a sum shows that their products leave it are added as fp32 is.
// Included by kernels_host.cc alone; stateless.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime/device/kernels_host.h"
#include "runtime/device/registers_host.h"

namespace horon {

inline constexpr int kLanes = 16, kShortLanes = 32;

template <Isa isa>
struct Lanes {
  static constexpr int kRegisters = kLanes / kWidth<isa>;
  using Wide = typename Vectors<kWidth<isa>>::Wide;

  Wide sums[kRegisters] = {};

  [[gnu::always_inline]] double Total() const {
    double v[kLanes];
    std::memcpy(v, sums, sizeof v);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) v[i] += v[i + width];
    }
    return v[0];
  }
};

// Of the sums in pairs.
[[gnu::always_inline]] inline double TotalOf(const float* pairs) {
  float __attribute__((vector_size(32))) eight, more;
  std::memcpy(&eight, pairs, sizeof eight);
  std::memcpy(&more, pairs + 8, sizeof more);
  eight += more;
  float __attribute__((vector_size(16))) low, high;
  std::memcpy(&low, &eight, sizeof low);
  std::memcpy(&high, reinterpret_cast<const char*>(&eight) + sizeof low, sizeof high);
  low += high;
  const double even = static_cast<double>(low[0]) + static_cast<double>(low[2]);
  const double odd = static_cast<double>(low[1]) + static_cast<double>(low[3]);
  return even + odd;
}

// Which two of the running sums are added first, so that registers are: of bf16 every one is loaded
// with the odd one beside it.
template <typename T>
inline constexpr bool kNeighbours = std::is_same_v<T, BFloat16>;

// Adds n products to *sum, as ShortDotsLoop does.
template <typename T>
struct ShortSumLoop {
  [[gnu::always_inline]] static void Go(const float* in, int64_t n, double* sum) {
    float lanes[kShortLanes] = {}, pairs[kShortLanes / 2];
    int64_t i = 0;
    for (; i + kShortLanes <= n; i += kShortLanes) {
      for (int lane = 0; lane < kShortLanes; ++lane) lanes[lane] += in[i + lane];
    }
    for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += in[i];
    for (int j = 0; j < kShortLanes / 2; ++j) {
      pairs[j] = kNeighbours<T> ? lanes[2 * j] + lanes[2 * j + 1] : lanes[j] + lanes[j + 16];
    }
    *sum += TotalOf(pairs);
  }
};

// Adds n doubles to *sum.
template <Isa isa>
struct SumLoop {
  using L = Lanes<isa>;

  [[gnu::always_inline]] static void Step(const double* in, L* sums) {
#pragma GCC unroll 8
    for (int r = 0; r < L::kRegisters; ++r) {
      typename L::Wide x;
      std::memcpy(&x, in + r * kWidth<isa>, sizeof x);
      sums->sums[r] += x;
    }
  }

  [[gnu::always_inline]] static void Go(const double* in, int64_t n, double* sum) {
    L sums;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Step(in + i, &sums);
    if (i < n) {
      double rest[kLanes] = {};
      std::memcpy(rest, in + i, static_cast<size_t>(n - i) * sizeof(double));
      Step(rest, &sums);
    }
    *sum += sums.Total();
  }
};

}  // namespace horon
