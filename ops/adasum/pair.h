// The pair formula of Adasum: what two gradients become. Pure; knows no ranks and no transport.
//
// For two vectors of one tensor, D = a.b, A = a.a, B = b.b, and a standing for m of m + k gradients
// ("leaves"), b for k:
//   Ada(a, b) = ca a + cb b,   ca = 1 - m/(m+k) D/A,   cb = 1 - k/(m+k) D/B
// Orthogonal vectors are added, parallel ones averaged (weighted by their leaves), what is between
// lies between. With m = k this is the formula of Maleki et al., Scaling Distributed Training with
// Adaptive Summation, MLSys 2021; the weights make parallel gradients average exactly in trees of
// any shape, so that any number of ranks will do.
#pragma once

#include "runtime/device/kernels.h"

namespace horon::adasum {

// What Ada(0, b) is: b, as for orthogonal vectors; or k/(m+k) b, as for parallel ones (a parameter
// that some ranks did not use is then averaged).
enum class ZeroPolicy { kSum, kMean };

struct Coefficients {
  double a = 1, b = 1;
};

// A vector counts as zero when its square is below the root of the smallest normal double; for
// dtypes up to fp32 that is only an exact zero. A NaN or Inf in either vector makes at least one
// coefficient NaN, and with it every element of the combination.
Coefficients CoefficientsOf(const Dots& dots, double leaves_a, double leaves_b, ZeroPolicy zeros);

}  // namespace horon::adasum
