#include "ops/adasum/pair.h"

#include <cmath>
#include <limits>

namespace horon::adasum {

Coefficients CoefficientsOf(const Dots& dots, double leaves_a, double leaves_b, ZeroPolicy zeros) {
  static const double kZero = std::sqrt(std::numeric_limits<double>::min());
  const double share_a = leaves_a / (leaves_a + leaves_b);
  const double share_b = leaves_b / (leaves_a + leaves_b);
  // A NaN is not below anything, so it goes on into the quotient.
  const bool zero_a = dots.aa < kZero, zero_b = dots.bb < kZero;
  Coefficients result;
  if (!zero_a) result.a = 1 - share_a * (dots.ab / dots.aa);
  if (!zero_b) result.b = 1 - share_b * (dots.ab / dots.bb);
  if (zeros == ZeroPolicy::kMean && zero_a && !zero_b) result.b = share_b;
  if (zeros == ZeroPolicy::kMean && zero_b && !zero_a) result.a = share_a;
  return result;
}

}  // namespace horon::adasum
