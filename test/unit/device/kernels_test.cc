#include "runtime/device/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "test/support/catch.h"
#include "test/unit/device/elements.h"

namespace horon {
namespace {

using test::Elements;
using test::Get;

constexpr ReduceKind kKinds[] = {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax,
                                 ReduceKind::kProduct};
constexpr int64_t kCounts[] = {0, 1, 3, 7, 64, 1000, 4097};

// Small whole numbers: exact in every dtype, also as products of five.
Elements Filled(DataType dtype, int64_t count, int64_t shift, unsigned seed) {
  Elements elements(dtype, count, shift);
  std::mt19937 random(seed);
  const bool has_sign = dtype != DataType::kUInt8 && dtype != DataType::kBool;
  for (int64_t i = 0; i < count; ++i) {
    const int value = static_cast<int>(random() % 3u) - (has_sign ? 1 : 0);
    elements.set(i, dtype == DataType::kBool ? (value != 0) : value);
  }
  return elements;
}

std::vector<Elements> AllFilled(DataType dtype, int64_t count, int inputs) {
  std::vector<Elements> filled;
  for (int k = 0; k < inputs; ++k)
    filled.push_back(Filled(dtype, count, k, static_cast<unsigned>(k + 1)));
  return filled;
}

double FoldOf(ReduceKind kind, double a, double b) {
  switch (kind) {
    case ReduceKind::kSum:
      return a + b;
    case ReduceKind::kMin:
      return std::min(a, b);
    case ReduceKind::kMax:
      return std::max(a, b);
    case ReduceKind::kProduct:
      return a * b;
  }
  return std::nan("");
}
double Expected(ReduceKind kind, DataType dtype, double scale, const std::vector<Elements>& inputs,
                int64_t i) {
  double result = inputs[0].at(i);
  for (size_t k = 1; k < inputs.size(); ++k) result = FoldOf(kind, result, inputs[k].at(i));
  if (dtype == DataType::kBool) return std::min(result, 1.0);
  result *= scale;
  if (!IsFloat(dtype)) result = std::trunc(result);
  return result;
}

// Reduces `inputs`, into a buffer of its own or over input number `over`, and counts wrong
// elements.
int64_t WrongElements(ReduceKind kind, DataType dtype, double scale, std::vector<Elements> inputs,
                      int64_t count, int over) {
  std::vector<double> want;
  for (int64_t i = 0; i < count; ++i) want.push_back(Expected(kind, dtype, scale, inputs, i));
  Elements own(dtype, count, 1);
  Elements& out = over < 0 ? own : inputs[static_cast<size_t>(over)];
  std::vector<const std::byte*> pointers;
  for (const Elements& input : inputs) pointers.push_back(input.data());
  ReduceInto(kind, dtype, scale, pointers, out.data(), count);
  int64_t wrong = out.guarded() ? 0 : 1;
  for (int64_t i = 0; i < count; ++i) wrong += out.at(i) != want[static_cast<size_t>(i)] ? 1 : 0;
  return wrong;
}

TEST_CASE("reductions agree with a reference in double", "[kernels]") {
  for (int type = 0; type < kDataTypes; ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (const ReduceKind kind : kKinds) {
      for (const int64_t count : kCounts) {
        for (int inputs = 1; inputs <= 5; ++inputs) {
          const std::vector<Elements> filled = AllFilled(dtype, count, inputs);
          INFO(NameOf(dtype) << ", kind " << static_cast<int>(kind) << ", count " << count
                             << ", inputs " << inputs);
          for (int over = -1; over < inputs; ++over) {
            CHECK(WrongElements(kind, dtype, 1.0, filled, count, over) == 0);
            if (dtype != DataType::kBool)
              CHECK(WrongElements(kind, dtype, 0.5, filled, count, over) == 0);
          }
        }
      }
    }
  }
}

// Over the first input, over all others, and to a place of its own.
TEST_CASE("a result goes to copies as well, which may be inputs", "[kernels]") {
  for (int type = 0; type < kDataTypes; ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (const ReduceKind kind : kKinds) {
      for (const int64_t count : kCounts) {
        for (int inputs = 1; inputs <= 4; ++inputs) {
          for (const bool own : {false, true}) {
            std::vector<Elements> all = AllFilled(dtype, count, inputs);
            std::vector<double> want;
            for (int64_t i = 0; i < count; ++i) want.push_back(Expected(kind, dtype, 1.0, all, i));
            if (own) all.emplace_back(dtype, count, 1);
            std::vector<const std::byte*> from;
            for (int k = 0; k < inputs; ++k) from.push_back(all[static_cast<size_t>(k)].data());
            std::vector<std::byte*> to;
            for (Elements& one : all) to.push_back(one.data());
            ReduceInto(kind, dtype, 1.0, from, to[0], count, std::span(to).subspan(1));
            int64_t wrong = 0;
            for (const Elements& one : all) {
              wrong += !one.guarded();
              for (size_t i = 0; i < want.size(); ++i)
                wrong += one.at(static_cast<int64_t>(i)) != want[i];
            }
            INFO(NameOf(dtype) << ", kind " << static_cast<int>(kind) << ", count " << count
                               << ", inputs " << inputs);
            CHECK(wrong == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("sums of floats are added left to right in the accumulator's type", "[kernels]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> number(-1.0f, 1.0f);
  constexpr int64_t kCount = 3001;
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    std::vector<Elements> inputs(5, Elements(dtype, kCount));
    for (Elements& input : inputs) {
      for (int64_t i = 0; i < kCount; ++i) input.set(i, number(random));
    }
    std::vector<const std::byte*> pointers;
    for (const Elements& input : inputs) pointers.push_back(input.data());
    Elements out(dtype, kCount), want(dtype, kCount);
    ReduceInto(ReduceKind::kSum, dtype, 0.2, pointers, out.data(), kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      if (dtype == DataType::kFloat64) {
        double sum = inputs[0].at(i);
        for (size_t k = 1; k < inputs.size(); ++k) sum += inputs[k].at(i);
        want.set(i, 0.2 * sum);
      } else {
        auto sum = static_cast<float>(inputs[0].at(i));
        for (size_t k = 1; k < inputs.size(); ++k) sum += static_cast<float>(inputs[k].at(i));
        want.set(i, 0.2f * sum);
      }
    }
    INFO(NameOf(dtype));
    CHECK(std::memcmp(out.data(), want.data(), static_cast<size_t>(kCount * SizeOf(dtype))) == 0);
  }
}

TEST_CASE("integers wrap when they overflow", "[kernels]") {
  const auto fold = [](auto a, auto b, ReduceKind kind) {
    using T = decltype(a);
    std::vector<T> left(100, a), right(100, b), out(100);
    const std::byte* in[] = {reinterpret_cast<std::byte*>(left.data()),
                             reinterpret_cast<std::byte*>(right.data())};
    const DataType dtype = std::is_same_v<T, uint8_t>   ? DataType::kUInt8
                           : std::is_same_v<T, int8_t>  ? DataType::kInt8
                           : std::is_same_v<T, int16_t> ? DataType::kInt16
                           : std::is_same_v<T, int32_t> ? DataType::kInt32
                                                        : DataType::kInt64;
    ReduceInto(kind, dtype, 1.0, in, reinterpret_cast<std::byte*>(out.data()), 100);
    CHECK(std::count(out.begin(), out.end(), out[0]) == 100);
    return out[0];
  };
  CHECK(fold(uint8_t{255}, uint8_t{3}, ReduceKind::kSum) == 2);
  CHECK(fold(int8_t{127}, int8_t{1}, ReduceKind::kSum) == -128);
  CHECK(fold(int16_t{-32768}, int16_t{-1}, ReduceKind::kSum) == 32767);
  CHECK(fold(int16_t{-1}, int16_t{-32768}, ReduceKind::kProduct) == -32768);
  CHECK(fold(INT32_MAX, 1, ReduceKind::kSum) == INT32_MIN);
  CHECK(fold(INT32_MIN, -1, ReduceKind::kProduct) == INT32_MIN);
  CHECK(fold(INT64_MAX, int64_t{2}, ReduceKind::kProduct) == -2);
  CHECK(fold(INT64_MIN, int64_t{-1}, ReduceKind::kSum) == INT64_MAX);
}

template <typename T>
T ScaledAlone(DataType dtype, double scale, T value) {
  std::vector<T> in(33, value), out(33);
  ScaleInto(dtype, scale, reinterpret_cast<std::byte*>(in.data()),
            reinterpret_cast<std::byte*>(out.data()), 33);
  CHECK(std::count(out.begin(), out.end(), out[0]) == 33);
  return out[0];
}

TEST_CASE("scaled integers are truncated, and end at the ends of their range", "[kernels]") {
  CHECK(ScaledAlone<int32_t>(DataType::kInt32, 0.5, 7) == 3);
  CHECK(ScaledAlone<int32_t>(DataType::kInt32, 0.5, -7) == -3);
  // A mean that is whole is that, although 1/n is rounded.
  bool whole = true;
  for (int32_t n = 1; n <= 2000; ++n) {
    for (const int32_t mean : {1, 3, 1000, -1, -999'999}) {
      whole = whole && ScaledAlone<int32_t>(DataType::kInt32, 1.0 / n, mean * n) == mean &&
              ScaledAlone<int64_t>(DataType::kInt64, 1.0 / n, mean * n) == mean &&
              (n == 1 || ScaledAlone<int32_t>(DataType::kInt32, 1.0 / n, n - 1) == 0);
    }
  }
  CHECK(whole);
  CHECK(ScaledAlone<int64_t>(DataType::kInt64, 0.5, int64_t{1} << 62) == int64_t{1} << 61);
  CHECK(ScaledAlone<int8_t>(DataType::kInt8, 3.0, 100) == 127);
  CHECK(ScaledAlone<int8_t>(DataType::kInt8, -3.0, 100) == -128);
  CHECK(ScaledAlone<int8_t>(DataType::kInt8, 1.279, 100) == 127);
  CHECK(ScaledAlone<uint8_t>(DataType::kUInt8, -1.0, 9) == 0);
  CHECK(ScaledAlone<int16_t>(DataType::kInt16, 1e300, -1) == INT16_MIN);
  CHECK(ScaledAlone<int64_t>(DataType::kInt64, 2.0, INT64_MAX) == INT64_MAX);
  CHECK(ScaledAlone<int64_t>(DataType::kInt64, -2.0, INT64_MAX) == INT64_MIN);
  CHECK(ScaledAlone<int64_t>(DataType::kInt64, 0.5, int64_t{1} << 62) == int64_t{1} << 61);
  CHECK(ScaledAlone<int32_t>(DataType::kInt32, std::nan(""), 5) == 0);
  CHECK(ScaledAlone<int32_t>(DataType::kInt32, std::numeric_limits<double>::infinity(), -5) ==
        INT32_MIN);
}

TEST_CASE("any byte but zero is true", "[kernels]") {
  const std::vector<uint8_t> a = {0, 0, 2, 255, 0, 1}, b = {0, 4, 0, 3, 0, 2};
  const std::byte* in[] = {reinterpret_cast<const std::byte*>(a.data()),
                           reinterpret_cast<const std::byte*>(b.data())};
  std::vector<uint8_t> out(a.size());
  auto* to = reinterpret_cast<std::byte*>(out.data());
  for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax}) {
    ReduceInto(kind, DataType::kBool, 1.0, in, to, 6);
    CHECK(out == std::vector<uint8_t>{0, 1, 1, 1, 0, 1});
  }
  for (const ReduceKind kind : {ReduceKind::kMin, ReduceKind::kProduct}) {
    ReduceInto(kind, DataType::kBool, 1.0, in, to, 6);
    CHECK(out == std::vector<uint8_t>{0, 0, 0, 1, 0, 1});
  }
  CHECK_FALSE(Supports(ReduceKind::kSum, DataType::kBool, true));
  CHECK(Supports(ReduceKind::kSum, DataType::kBool, false));
  CHECK(Supports(ReduceKind::kProduct, DataType::kInt8, true));
}

TEST_CASE("a NaN wins in min and max, from either side; infinities and subnormals keep",
          "[kernels]") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    const double tiny = dtype == DataType::kFloat16    ? 0x1p-24
                        : dtype == DataType::kBFloat16 ? 0x1p-133
                        : dtype == DataType::kFloat32  ? 0x1p-149
                                                       : 0x0.0000000000001p-1022;
    const std::vector<std::vector<double>> rows = {{nan, 1},    {1, nan},  {nan, nan},
                                                   {inf, -inf}, {tiny, 0}, {-tiny, tiny}};
    constexpr int64_t kCount = 200;
    for (const std::vector<double>& row : rows) {
      std::vector<Elements> inputs(2, Elements(dtype, kCount));
      for (int64_t i = 0; i < kCount; ++i) inputs[0].set(i, row[0]), inputs[1].set(i, row[1]);
      const std::byte* in[] = {inputs[0].data(), inputs[1].data()};
      Elements low(dtype, kCount), high(dtype, kCount), sum(dtype, kCount);
      ReduceInto(ReduceKind::kMin, dtype, 1.0, in, low.data(), kCount);
      ReduceInto(ReduceKind::kMax, dtype, 1.0, in, high.data(), kCount);
      ReduceInto(ReduceKind::kSum, dtype, 1.0, in, sum.data(), kCount);
      const bool any_nan = std::isnan(row[0]) || std::isnan(row[1]);
      int wrong = 0;
      for (int64_t i = 0; i < kCount; ++i) {
        const bool right =
            any_nan
                ? std::isnan(low.at(i)) && std::isnan(high.at(i)) && std::isnan(sum.at(i))
                : low.at(i) == std::min(row[0], row[1]) && high.at(i) == std::max(row[0], row[1]) &&
                      (std::isnan(row[0] + row[1]) ? std::isnan(sum.at(i))
                                                   : sum.at(i) == row[0] + row[1]);
        wrong += right ? 0 : 1;
      }
      INFO(NameOf(dtype) << ": " << row[0] << " and " << row[1]);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("combinations agree with a reference", "[kernels]") {
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const int64_t count : kCounts) {
      for (int over = 0; over < 3; ++over) {
        Elements x = Filled(dtype, count, 1, 5), y = Filled(dtype, count, 3, 6),
                 own(dtype, count, 2);
        std::vector<double> want;
        for (int64_t i = 0; i < count; ++i) want.push_back(0.25 * x.at(i) - 3.0 * y.at(i));
        // The copy goes over the other input, or nowhere.
        Elements &out = over == 0 ? own : over == 1 ? x : y, &copy = over == 2 ? x : y;
        CombineInto(dtype, 0.25, x.data(), -3.0, y.data(), out.data(), count,
                    over == 0 ? nullptr : copy.data());
        int64_t wrong = out.guarded() && copy.guarded() ? 0 : 1;
        for (int64_t i = 0; i < count; ++i) {
          wrong += out.at(i) == want[static_cast<size_t>(i)] ? 0 : 1;
          wrong += over == 0 || copy.at(i) == out.at(i) ? 0 : 1;
        }
        INFO(NameOf(dtype) << ", count " << count << ", out " << over);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("widening and rounding in blocks agree with one element at a time", "[kernels]") {
  std::vector<uint16_t> patterns(65536), back(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(65536);
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
    ToFloat(dtype, reinterpret_cast<std::byte*>(patterns.data()), wide.data(), 65536);
    FromFloat(dtype, wide.data(), reinterpret_cast<std::byte*>(back.data()), 65536);
    int wrong = 0;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const auto want = static_cast<float>(Get(dtype, reinterpret_cast<std::byte*>(&patterns[i])));
      const bool right =
          std::isnan(want) ? std::isnan(wide[i]) : wide[i] == want && back[i] == patterns[i];
      wrong += right ? 0 : 1;
    }
    INFO(NameOf(dtype));
    CHECK(wrong == 0);
  }
  const std::vector<double> doubles = {1.0, -2.5, 1e300, 0x1p-149};
  std::vector<double> returned(4);
  ToFloat(DataType::kFloat64, reinterpret_cast<const std::byte*>(doubles.data()), wide.data(), 4);
  FromFloat(DataType::kFloat64, wide.data(), reinterpret_cast<std::byte*>(returned.data()), 4);
  CHECK(returned ==
        std::vector<double>{1.0, -2.5, std::numeric_limits<double>::infinity(), 0x1p-149});
  FromFloat(DataType::kFloat32, wide.data(), reinterpret_cast<std::byte*>(back.data()), 4);
  CHECK(std::memcmp(back.data(), wide.data(), 16) == 0);
}

TEST_CASE("copies are whole, wherever they begin and end", "[kernels]") {
  const auto copy = GENERATE(CopyInto, CopyPastCaches);
  for (const int64_t bytes : {int64_t{0}, int64_t{20}, int64_t{100}, kPastCachesBytes, kPastCachesBytes + 77}) {
    for (const size_t from : {size_t{0}, size_t{3}}) {
      for (const size_t to : {size_t{0}, size_t{1}, size_t{63}}) {
        std::vector<std::byte> in(static_cast<size_t>(bytes) + from);
        for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7 + i / 4096 + 1);
        constexpr size_t kGuard = 64;
        std::vector<std::byte> out(static_cast<size_t>(bytes) + to + kGuard, std::byte{0xaa});
        copy(in.data() + from, out.data() + to, bytes);
        const auto end = out.end() - kGuard;
        CHECK(std::equal(in.begin() + static_cast<int64_t>(from), in.end(),
                         out.begin() + static_cast<int64_t>(to), end));
        const auto untouched = [](std::byte b) { return b == std::byte{0xaa}; };
        CHECK(std::all_of(out.begin(), out.begin() + static_cast<int64_t>(to), untouched));
        CHECK(std::all_of(end, out.end(), untouched));
      }
    }
  }
}

}  // namespace
}  // namespace horon
