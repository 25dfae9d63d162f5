// Inner products of vectors, in double: what the loops under AddDots add up in
// (loops_isa_host.h).
//
// Sixteen running sums, whatever the width of the registers: element i goes to sum i % 16, and the
// sixteen are added in one fixed order, so that the bits do not depend on the instruction set. A
// product of two fp32 (or narrower) values is exact in double, so that a fused multiply-add gives
// the same bits as two instructions. Included by kernels_host.cc alone; stateless.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/device/kernels_host.h"
#include "runtime/device/registers_host.h"

namespace horon {

inline constexpr int kLanes = 16;

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
