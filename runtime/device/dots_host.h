// Inner products of vectors, in double: the loops under AddDots.
//
// Sixteen running sums, whatever the width of the registers: element i goes to sum i % 16, and the
// sixteen are added in one fixed order, so that the bits do not depend on the instruction set. A
// product of two fp32 (or narrower) values is exact in double, so that a fused multiply-add gives
// the same bits as two instructions. Included by kernels_host.cc alone; stateless.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/device/kernels_host.h"

namespace horon {

// Doubles in a register. The vector types are the compiler's own.
template <Isa isa>
inline constexpr int kWidth = isa == Isa::kAvx512 ? 8
                              : isa == Isa::kAvx2 ? 4
                                                  : 2;
template <int width>
struct Vectors;
template <>
struct Vectors<2> {
  using Wide = double __attribute__((vector_size(16)));
  using Narrow = float __attribute__((vector_size(8)));
};
template <>
struct Vectors<4> {
  using Wide = double __attribute__((vector_size(32)));
  using Narrow = float __attribute__((vector_size(16)));
};
template <>
struct Vectors<8> {
  using Wide = double __attribute__((vector_size(64)));
  using Narrow = float __attribute__((vector_size(32)));
};

inline constexpr int kLanes = 16;

template <Isa isa>
struct Lanes {
  static constexpr int kRegisters = kLanes / kWidth<isa>;
  using Wide = typename Vectors<kWidth<isa>>::Wide;
  using Narrow = typename Vectors<kWidth<isa>>::Narrow;

  Wide sums[kRegisters] = {};

  [[gnu::always_inline]] static void Load(const float* from, Wide* to) {
    Narrow narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    *to = __builtin_convertvector(narrow, Wide);
  }
  [[gnu::always_inline]] static void Load(const double* from, Wide* to) {
    std::memcpy(to, from, sizeof *to);
  }

  [[gnu::always_inline]] double Total() const {
    double v[kLanes];
    std::memcpy(v, sums, sizeof v);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) v[i] += v[i + width];
    }
    return v[0];
  }
};

// Adds a.b, a.a and b.b of n fp32 elements to *sum.
template <Isa isa>
struct DotsLoop {
  using L = Lanes<isa>;
  struct Sums {
    L ab, aa, bb;
  };

  [[gnu::always_inline]] static void Step(const float* a, const float* b, Sums* sums) {
#pragma GCC unroll 8
    for (int r = 0; r < L::kRegisters; ++r) {
      typename L::Wide x, y;
      L::Load(a + r * kWidth<isa>, &x);
      L::Load(b + r * kWidth<isa>, &y);
      sums->ab.sums[r] += x * y;
      sums->aa.sums[r] += x * x;
      sums->bb.sums[r] += y * y;
    }
  }

  [[gnu::always_inline]] static void Go(const float* a, const float* b, int64_t n, Dots* sum) {
    Sums sums;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Step(a + i, b + i, &sums);
    if (i < n) {
      float x[kLanes] = {}, y[kLanes] = {};
      std::memcpy(x, a + i, static_cast<size_t>(n - i) * sizeof(float));
      std::memcpy(y, b + i, static_cast<size_t>(n - i) * sizeof(float));
      Step(x, y, &sums);
    }
    sum->ab += sums.ab.Total();
    sum->aa += sums.aa.Total();
    sum->bb += sums.bb.Total();
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
      L::Load(in + r * kWidth<isa>, &x);
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
