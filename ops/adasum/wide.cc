#include "ops/adasum/wide.h"

#include <algorithm>
#include <cmath>

namespace horon::adasum {
namespace {

constexpr int32_t kMostPower = 1021;  // both it and its inverse are normal doubles

// The power for a vector with that square.
int32_t PowerFor(double square) {
  if (square > 0x1p900) return -WideDots::kTiny;
  return square < 0x1p-500 ? WideDots::kTiny : 0;  // of a NaN, which stays one, 0
}

// Some doubles times a power of two.
class Block {
 public:
  Block(int32_t power, const std::byte* values, int64_t count) {
    ScaleInto(DataType::kFloat64, std::ldexp(1.0, power), values, data(), count);
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(values_); }

 private:
  double values_[kDotBlock];
};

WideDots DotsOfBlock(const std::byte* a, const std::byte* b, int64_t count) {
  WideDots dots;
  horon::AddDots(DataType::kFloat64, a, b, count, &dots.of);
  dots.power_a = PowerFor(dots.of.aa);
  dots.power_b = PowerFor(dots.of.bb);
  if (dots.power_a == 0 && dots.power_b == 0) return dots;
  Block x(dots.power_a, a, count), y(dots.power_b, b, count);
  dots.of = {};
  horon::AddDots(DataType::kFloat64, x.data(), y.data(), count, &dots.of);
  return dots;
}

}  // namespace

void WideDots::Rescale(int32_t to_a, int32_t to_b) {
  const int by_a = to_a - power_a, by_b = to_b - power_b;
  if (by_a == 0 && by_b == 0) return;
  of = {std::ldexp(of.ab, by_a + by_b), std::ldexp(of.aa, 2 * by_a), std::ldexp(of.bb, 2 * by_b)};
  power_a = to_a;
  power_b = to_b;
}

void WideDots::Add(WideDots other) {
  const int32_t to_a = std::min(power_a, other.power_a), to_b = std::min(power_b, other.power_b);
  Rescale(to_a, to_b);
  other.Rescale(to_a, to_b);
  of = {of.ab + other.of.ab, of.aa + other.of.aa, of.bb + other.of.bb};
}

void AddDots(DataType dtype, const std::byte* a, const std::byte* b, int64_t count, WideDots* sum) {
  if (dtype != DataType::kFloat64) {
    sum->Rescale(0, 0);
    horon::AddDots(dtype, a, b, count, &sum->of);
    return;
  }
  for (int64_t at = 0; at < count; at += kDotBlock) {
    const int64_t bytes = at * SizeOf(dtype);
    sum->Add(DotsOfBlock(a + bytes, b + bytes, std::min(kDotBlock, count - at)));
  }
}

Weights WeightsOf(const WideDots& dots, double leaves_a, double leaves_b, ZeroPolicy zeros) {
  const Dots& of = dots.of;
  const bool finite = std::isfinite(of.ab) && std::isfinite(of.aa) && std::isfinite(of.bb);
  if (of.aa == 0 || of.bb == 0) {  // one is zero: how long the other is makes no difference
    const auto some = [](double square) { return std::isnormal(square) ? 1.0 : square; };
    return {CoefficientsOf({of.ab, some(of.aa), some(of.bb)}, leaves_a, leaves_b, zeros)};
  }
  if (!finite || (dots.power_a == 0 && dots.power_b == 0))
    return {CoefficientsOf(of, leaves_a, leaves_b, zeros)};
  // Both to a length near 1. With 2^p a = x and 2^q b = y, a's part of the combination is
  // (2^-p - share x.y/x.x 2^-q) x.
  const auto power = [](int32_t so_far, double square) {
    return std::clamp(so_far - std::ilogb(square) / 2, -kMostPower, kMostPower);
  };
  WideDots near_one = dots;
  near_one.Rescale(power(dots.power_a, of.aa), power(dots.power_b, of.bb));
  const double all = leaves_a + leaves_b;
  const double back_a = std::ldexp(1.0, -near_one.power_a);
  const double back_b = std::ldexp(1.0, -near_one.power_b);
  const Dots& unit = near_one.of;
  return {{back_a - leaves_a / all * (unit.ab / unit.aa) * back_b,
           back_b - leaves_b / all * (unit.ab / unit.bb) * back_a},
          near_one.power_a,
          near_one.power_b};
}

void Combine(DataType dtype, const Weights& weights, const std::byte* a, const std::byte* b,
             std::byte* out, int64_t count, std::byte* copy) {
  const auto [ca, cb] = weights.of;
  if (weights.power_a == 0 && weights.power_b == 0) {
    CombineInto(dtype, ca, a, cb, b, out, count, copy);
    return;
  }
  for (int64_t at = 0; at < count; at += kDotBlock) {
    const int64_t n = std::min(kDotBlock, count - at), bytes = at * SizeOf(dtype);
    Block x(weights.power_a, a + bytes, n), y(weights.power_b, b + bytes, n);
    std::byte* const copy_at = copy == nullptr ? nullptr : copy + bytes;
    CombineInto(dtype, ca, x.data(), cb, y.data(), out + bytes, n, copy_at);
  }
}

}  // namespace horon::adasum
