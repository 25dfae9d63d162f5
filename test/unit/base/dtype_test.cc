#include "runtime/base/dtype.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "runtime/include/horon/horon.h"
#include "test/support/catch.h"

namespace horon {
namespace {

// fp16 and bf16 as their definitions read, without a bit trick: sign, exponent, fraction.
double Decode(uint32_t bits, int exponent_bits, int fraction_bits) {
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1u);
  const uint32_t exponent = (bits >> fraction_bits) & ((1u << exponent_bits) - 1u);
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1u << exponent_bits) - 1u) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  const double unit = std::ldexp(1.0, -fraction_bits);
  if (exponent == 0) return sign * std::ldexp(fraction * unit, 1 - bias);
  return sign * std::ldexp(1.0 + fraction * unit, static_cast<int>(exponent) - bias);
}

bool SameValue(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : (a == b && std::signbit(a) == std::signbit(b));
}

// Checks every pattern of a 16-bit float: its value, and that the value rounds back to the pattern.
template <typename Half>
void CheckAllPatterns(int exponent_bits, int fraction_bits) {
  int wrong = 0;
  for (uint32_t pattern = 0; pattern <= 0xffffu; ++pattern) {
    Half half;
    half.bits = static_cast<uint16_t>(pattern);
    const float value = static_cast<float>(half);
    const bool right = SameValue(value, Decode(pattern, exponent_bits, fraction_bits));
    const Half back(value);
    const bool returns =
        std::isnan(value) ? std::isnan(static_cast<float>(back)) : back.bits == half.bits;
    if (!right || !returns) {
      ++wrong;
      UNSCOPED_INFO("pattern " << pattern << " reads " << value << ", returns as " << back.bits);
    }
  }
  CHECK(wrong == 0);
}

// Checks around every boundary between two neighbours that fp32 values round to the nearest, and
// halfway to the even one.
template <typename Half>
void CheckRounding(uint32_t largest) {
  int wrong = 0;
  for (uint32_t pattern = 0; pattern < largest; ++pattern) {
    Half low, high;
    low.bits = static_cast<uint16_t>(pattern);
    high.bits = static_cast<uint16_t>(pattern + 1);
    const double a = static_cast<float>(low), b = static_cast<float>(high);
    const auto middle = static_cast<float>((a + b) / 2);  // exact in fp32
    const float below = std::nextafter(middle, -1.0f);
    const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
    const uint16_t even = (pattern & 1u) == 0 ? low.bits : high.bits;
    if (Half(middle).bits != even || Half(below).bits != low.bits ||
        Half(above).bits != high.bits) {
      ++wrong;
      UNSCOPED_INFO("between patterns " << pattern << " and " << pattern + 1);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("every float16 pattern has its value and returns to itself", "[dtype]") {
  CheckAllPatterns<Float16>(5, 10);
}

TEST_CASE("every bfloat16 pattern has its value and returns to itself", "[dtype]") {
  CheckAllPatterns<BFloat16>(8, 7);
}

TEST_CASE("float16 rounds to nearest, ties to even", "[dtype]") {
  CheckRounding<Float16>(0x7bff);  // below Inf's pattern
  CHECK(Float16(65519.996f).bits == 0x7bff);
  CHECK(Float16(65520.0f).bits == 0x7c00);
  CHECK(Float16(-1e30f).bits == 0xfc00);
  CHECK(Float16(0x1p-26f).bits == 0);
}

TEST_CASE("bfloat16 rounds to nearest, ties to even", "[dtype]") {
  CheckRounding<BFloat16>(0x7f7f);
  CHECK(BFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(BFloat16(-std::numeric_limits<float>::infinity()).bits == 0xff80);
}

TEST_CASE("a NaN stays one, whatever its payload", "[dtype]") {
  for (const uint32_t word :
       {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float nan = std::bit_cast<float>(word);
    CHECK(std::isnan(static_cast<float>(Float16(nan))));
    CHECK(std::isnan(static_cast<float>(BFloat16(nan))));
  }
}

TEST_CASE("names, sizes and types of all dtypes agree", "[dtype]") {
  std::set<std::string> names;
  for (int i = 0; i < kDataTypes; ++i) {
    const auto dtype = static_cast<DataType>(i);
    names.insert(std::string(NameOf(dtype)));
    CHECK(SizeOf(dtype) ==
          WithType(dtype, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); }));
  }
  CHECK(names.size() == kDataTypes);
}

TEST_CASE("the numbers are those of the C API", "[dtype]") {
  CHECK(static_cast<int>(DataType::kUInt8) == HORON_UINT8);
  CHECK(static_cast<int>(DataType::kInt8) == HORON_INT8);
  CHECK(static_cast<int>(DataType::kInt16) == HORON_INT16);
  CHECK(static_cast<int>(DataType::kInt32) == HORON_INT32);
  CHECK(static_cast<int>(DataType::kInt64) == HORON_INT64);
  CHECK(static_cast<int>(DataType::kFloat16) == HORON_FLOAT16);
  CHECK(static_cast<int>(DataType::kBFloat16) == HORON_BFLOAT16);
  CHECK(static_cast<int>(DataType::kFloat32) == HORON_FLOAT32);
  CHECK(static_cast<int>(DataType::kFloat64) == HORON_FLOAT64);
  CHECK(static_cast<int>(DataType::kBool) == HORON_BOOL);
}

TEST_CASE("floating dtypes are the four", "[dtype]") {
  int floats = 0;
  for (int i = 0; i < kDataTypes; ++i) floats += IsFloat(static_cast<DataType>(i)) ? 1 : 0;
  CHECK(floats == 4);
  CHECK(IsFloat(DataType::kBFloat16));
  CHECK_FALSE(IsFloat(DataType::kBool));
}

}  // namespace
}  // namespace horon
