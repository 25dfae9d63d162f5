// Inner products and combinations of vectors of any length. The square of a double leaves the range
// of doubles where a vector is shorter than 2^-250 or longer than 2^450: there the products are of
// the vectors times powers of two, which are kept beside them, and so is the combination. Narrower
// dtypes never need it.
#pragma once

#include <cstdint>

#include "ops/adasum/pair.h"

namespace horon::adasum {

// It travels like this, too.
struct WideDots {
  static constexpr int32_t kTiny = 600;  // the power for what is short, and for nothing at all
  Dots of;                               // of 2^power_a a and 2^power_b b
  int32_t power_a = kTiny, power_b = kTiny;

  // In lower powers.
  void Rescale(int32_t to_a, int32_t to_b);
  void Add(WideDots other);
};

// As horon::AddDots.
void AddDots(DataType dtype, const std::byte* a, const std::byte* b, int64_t count, WideDots* sum);

// What 2^power_a a and 2^power_b b weigh.
struct Weights {
  Coefficients of;
  int32_t power_a = 0, power_b = 0;
};
Weights WeightsOf(const WideDots& dots, double leaves_a, double leaves_b, ZeroPolicy zeros);

// As CombineInto.
void Combine(DataType dtype, const Weights& weights, const std::byte* a, const std::byte* b,
             std::byte* out, int64_t count, std::byte* copy = nullptr);

}  // namespace horon::adasum
