// The pair formula of Adasum, for hosts and GPUs: what two gradients weigh in their combination.
// Pure; plain enough for nvcc. What it is for: ops/adasum/pair.h.
//
// For two vectors of one tensor, D = a.b, A = a.a, B = b.b, and a standing for m of m + k gradients
// ("leaves"), b for k:
//   Ada(a, b) = ca a + cb b,   ca = 1 - m/(m+k) D/A,   cb = 1 - k/(m+k) D/B
#pragma once

#include <cstdint>

#include "runtime/device/kernels.h"

#ifdef __CUDACC__
#define HORON_HOST_DEVICE __host__ __device__
#else
#define HORON_HOST_DEVICE
#endif

namespace horon {

// What Ada(0, b) is: b, as for orthogonal vectors; or k/(m+k) b, as for parallel ones (a parameter
// that some ranks did not use is then averaged).
enum class ZeroPolicy : uint8_t { kSum, kMean };

struct Coefficients {
  double a = 1, b = 1;
};

struct Weighing {
  double leaves_a = 1, leaves_b = 1;
  ZeroPolicy zeros = ZeroPolicy::kSum;
};

// A vector counts as zero when its square is below the root of the smallest normal double; for
// dtypes up to fp32 that is only an exact zero. A NaN or Inf in either vector makes at least one
// coefficient NaN, and with it every element of the combination.
HORON_HOST_DEVICE inline Coefficients CoefficientsOf(const Dots& dots, const Weighing& how) {
  constexpr double kZero = 0x1p-511;
  const double share_a = how.leaves_a / (how.leaves_a + how.leaves_b);
  const double share_b = how.leaves_b / (how.leaves_a + how.leaves_b);
  // A NaN is not below anything, so it goes on into the quotient.
  const bool zero_a = dots.aa < kZero, zero_b = dots.bb < kZero;
  Coefficients result;
  if (!zero_a) result.a = 1 - share_a * (dots.ab / dots.aa);
  if (!zero_b) result.b = 1 - share_b * (dots.ab / dots.bb);
  const bool mean = how.zeros == ZeroPolicy::kMean;
  if (mean && zero_a && !zero_b) result.b = share_b;
  if (mean && zero_b && !zero_a) result.a = share_a;
  return result;
}

// out[t]: of the sum of parts[t], parts[tensors + t], ..., `rows` of them, added in this order: the
// dots of tensor t's pieces.
HORON_HOST_DEVICE inline Coefficients CoefficientsOf(const Dots* parts, int64_t rows,
                                                     int64_t tensors, int64_t t,
                                                     const Weighing& how) {
  Dots sum = parts[t];
  for (int64_t row = 1; row < rows; ++row) {
    const Dots& next = parts[row * tensors + t];
    sum.ab += next.ab;
    sum.aa += next.aa;
    sum.bb += next.bb;
  }
  return CoefficientsOf(sum, how);
}

}  // namespace horon
