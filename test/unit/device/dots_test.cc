// Inner products: against long double, the same bits on every instruction set and however cut.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/device/kernels_host.h"
#include "test/support/catch.h"
#include "test/support/reference.h"
#include "test/unit/device/elements.h"
#include "test/unit/device/vector_sets.h"

namespace horon {
namespace {

using test::Elements;
using test::kFloats;

constexpr int64_t kCounts[] = {0, 1, 7, 15, 16, 17, 100, kDotBlock - 1, kDotBlock, 5003};

Elements Random(DataType dtype, int64_t count, unsigned seed) {
  Elements elements(dtype, count, 1);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < count; ++i) elements.set(i, normal(random));
  return elements;
}

// Of all sizes that the dtype has, between one block and the next or within each: zeros, and those
// whose squares are beyond fp32.
Elements OfAllSizes(DataType dtype, int64_t count, unsigned seed, bool within_blocks) {
  Elements elements = Random(dtype, count, seed);
  const int widest = dtype == DataType::kFloat16 ? 12 : 120;
  std::mt19937 random(seed + 1);
  std::uniform_int_distribution<int> powers(-widest, widest);
  int power = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (within_blocks || i % kDotBlock == 0) power = powers(random);
    elements.set(i, power % 10 == 0 ? 0.0 : std::ldexp(elements.at(i), power));
  }
  return elements;
}

// Half of the fp32 and narrower ones' bits, or so: of 16-bit floats the sums of a block are fp32's.
double AllowedOf(DataType dtype, double length_of_both) {
  return (SizeOf(dtype) == 2 ? 0x1p-21 : 0x1p-45) * length_of_both;
}

bool SameBits(const Dots& a, const Dots& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

TEST_CASE("dots agree with a sum in long double", "[kernels]") {
  for (const DataType dtype : kFloats) {
    for (const int64_t count : kCounts) {
      const Elements a = Random(dtype, count, 1), b = Random(dtype, count, 2);
      long double ab = 0, aa = 0, bb = 0;
      for (int64_t i = 0; i < count; ++i) {
        const long double x = a.at(i), y = b.at(i);
        ab += x * y;
        aa += x * x;
        bb += y * y;
      }
      Dots sum;
      AddDots(dtype, a.data(), b.data(), count, &sum);
      const double allowed = AllowedOf(dtype, static_cast<double>(std::max(aa, bb)));
      INFO(NameOf(dtype) << " x " << count);
      CHECK(std::fabs(sum.ab - static_cast<double>(ab)) <= allowed);
      CHECK(std::fabs(sum.aa - static_cast<double>(aa)) <= allowed);
      CHECK(std::fabs(sum.bb - static_cast<double>(bb)) <= allowed);
    }
  }
}

TEST_CASE("dots of values of all sizes agree with a sum in long double", "[kernels]") {
  for (const DataType dtype : kFloats) {
    for (const bool within_blocks : {false, true}) {
      constexpr int64_t kCount = 64 * kDotBlock;
      const Elements a = OfAllSizes(dtype, kCount, 21, within_blocks);
      const Elements b = OfAllSizes(dtype, kCount, 31, within_blocks);
      // Block by block: the largest would hide the others.
      for (int64_t begin = 0; begin < kCount; begin += kDotBlock) {
        long double ab = 0, aa = 0, bb = 0;
        for (int64_t i = begin; i < begin + kDotBlock; ++i) {
          const long double x = a.at(i), y = b.at(i);
          ab += x * y;
          aa += x * x;
          bb += y * y;
        }
        Dots sum;
        const int64_t skip = begin * SizeOf(dtype);
        AddDots(dtype, a.data() + skip, b.data() + skip, kDotBlock, &sum);
        const auto near = [&](double got, long double want, long double length_of_both) {
          return std::fabs(got - static_cast<double>(want)) <=
                 AllowedOf(dtype, static_cast<double>(length_of_both));
        };
        INFO(NameOf(dtype) << (within_blocks ? ", mixed, " : ", ") << begin);
        CHECK(near(sum.ab, ab, std::sqrt(aa) * std::sqrt(bb)));
        CHECK(near(sum.aa, aa, aa));
        CHECK(near(sum.bb, bb, bb));
      }
    }
  }
}

TEST_CASE("dots keep a small sum of large terms of either sign", "[kernels]") {
  constexpr int64_t kCount = 1 << 16;  // in fp32 every 1.0 would be lost beside 1e8
  Elements a(DataType::kFloat32, kCount), b(DataType::kFloat32, kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    a.set(i, i % 2 == 0 ? 1e8 : -1e8);
    b.set(i, i % 64 == 0 ? 1.0 + 1e-3 : 1.0);
  }
  Dots sum;
  AddDots(DataType::kFloat32, a.data(), b.data(), kCount, &sum);
  const double step = static_cast<double>(static_cast<float>(1.0 + 1e-3)) - 1.0;
  CHECK(sum.ab == Approx(1e8 * step * (kCount / 64)).epsilon(1e-9));
}

TEST_CASE("dots have the same bits on every instruction set", "[kernels]") {
  const HostKernels& plain = *KernelsFor(Isa::kPlain);
  for (const auto& [name, other] : test::VectorSets()) {
    for (const DataType dtype : kFloats) {
      for (const int64_t count : kCounts) {
        for (const int how : {0, 1, 2}) {
          const auto values = [&](unsigned seed) {
            return how == 0 ? Random(dtype, count, seed) : OfAllSizes(dtype, count, seed, how == 1);
          };
          const Elements a = values(3), b = values(14);
          Dots x, y;
          plain.dots(dtype, a.data(), b.data(), count, &x);
          other->dots(dtype, a.data(), b.data(), count, &y);
          INFO(NameOf(dtype) << " x " << count << " by " << name);
          CHECK(SameBits(x, y));
        }
      }
    }
  }
}

TEST_CASE("half precision needs no instructions of its own", "[kernels]") {
  const HostKernels& plain = *KernelsFor(Isa::kPlain);
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
    Elements a(dtype, 5003), b(dtype, 5003);
    for (int64_t i = 0; i < 5003; ++i) {
      a.set(i, static_cast<double>(i % 7 - 3));
      b.set(i, static_cast<double>(i % 5 - 2));
    }
    double ab = 0, aa = 0;
    for (int64_t i = 0; i < 5003; ++i) {
      ab += a.at(i) * b.at(i);
      aa += a.at(i) * a.at(i);
    }
    Dots dots;
    plain.dots(dtype, a.data(), b.data(), 5003, &dots);
    CHECK(dots.ab == ab);  // small whole numbers: exact
    CHECK(dots.aa == aa);
  }
}

TEST_CASE("dots in several calls, cut at whole blocks, have the bits of one call", "[kernels]") {
  for (const DataType dtype : kFloats) {
    constexpr int64_t kCount = 7 * kDotBlock + 5;
    const Elements a = Random(dtype, kCount, 5), b = Random(dtype, kCount, 6);
    Dots whole;
    AddDots(dtype, a.data(), b.data(), kCount, &whole);
    for (const int64_t first : {int64_t{0}, kDotBlock, 4 * kDotBlock, 7 * kDotBlock}) {
      Dots cut;
      const int64_t skip = first * SizeOf(dtype);
      AddDots(dtype, a.data(), b.data(), first, &cut);
      AddDots(dtype, a.data() + skip, b.data() + skip, kCount - first, &cut);
      CHECK(SameBits(whole, cut));
    }
  }
}

TEST_CASE("a NaN or an Inf anywhere is in the dots", "[kernels]") {
  for (const DataType dtype : kFloats) {
    for (const int64_t at : {int64_t{0}, int64_t{15}, kDotBlock, 2 * kDotBlock + 2}) {
      for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        Elements a = Random(dtype, 2 * kDotBlock + 3, 7);
        const Elements b = Random(dtype, 2 * kDotBlock + 3, 8);
        a.set(at, bad);
        Dots sum;
        AddDots(dtype, a.data(), b.data(), 2 * kDotBlock + 3, &sum);
        CHECK_FALSE(std::isfinite(sum.ab));
        CHECK_FALSE(std::isfinite(sum.aa));
        CHECK(std::isfinite(sum.bb));
      }
    }
  }
}

TEST_CASE("a combination takes coefficients beyond fp32", "[kernels]") {
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat32}) {
    Elements x(dtype, 3), y(dtype, 3), out(dtype, 3);
    for (int64_t i = 0; i < 3; ++i) {
      x.set(i, std::ldexp(static_cast<double>(i + 1), -120));
      y.set(i, 3.0);
    }
    CombineInto(dtype, std::ldexp(1.0, 140), x.data(), -0.5, y.data(), out.data(), 3);
    for (int64_t i = 0; i < 3; ++i) {
      CHECK(out.at(i) ==
            std::ldexp(static_cast<double>(i + 1), 20) - (dtype == DataType::kFloat32 ? 1.5 : 0.0));
    }
  }
}

}  // namespace
}  // namespace horon
