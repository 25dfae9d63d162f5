// The same inputs give the same bits on every instruction set that this CPU has.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "runtime/device/kernels_host.h"
#include "test/support/catch.h"
#include "test/unit/device/elements.h"

namespace horon {
namespace {

using test::Elements;

constexpr ReduceKind kKinds[] = {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax,
                                 ReduceKind::kProduct};

// Equal bytes, or a NaN on both sides.
int64_t Differences(DataType dtype, const Elements& a, const Elements& b, int64_t count) {
  int64_t differences = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto size = static_cast<size_t>(SizeOf(dtype));
    const size_t offset = static_cast<size_t>(i) * size;
    const bool same = std::memcmp(a.data() + offset, b.data() + offset, size) == 0;
    if (!same && !(std::isnan(a.at(i)) && std::isnan(b.at(i)))) ++differences;
  }
  return differences;
}

Elements RandomBits(DataType dtype, int64_t count, unsigned seed) {
  Elements elements(dtype, count, 1);
  std::mt19937 random(seed);
  std::byte* at = elements.data();
  for (int64_t i = 0; i < count * SizeOf(dtype); ++i) {
    at[i] = static_cast<std::byte>(dtype == DataType::kBool ? random() % 2 : random() % 256);
  }
  return elements;
}

TEST_CASE("every instruction set gives the same bits", "[kernels]") {
  constexpr int64_t kCount = 5003;
  const HostKernels& plain = *KernelsFor(Isa::kPlain);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const HostKernels* other = KernelsFor(isa);
    if (other == nullptr) {
      WARN("this CPU has no " << (isa == Isa::kAvx2 ? "AVX2" : "AVX-512") << "; not compared");
      continue;
    }
    for (int type = 0; type < kDataTypes; ++type) {
      const auto dtype = static_cast<DataType>(type);
      std::vector<Elements> inputs;
      for (unsigned k = 0; k < 3; ++k) inputs.push_back(RandomBits(dtype, kCount, 10 + k));
      const std::byte* in[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
      Elements a(dtype, kCount), b(dtype, kCount);
      INFO(NameOf(dtype) << ", instruction set " << static_cast<int>(isa));
      for (const ReduceKind kind : kKinds) {
        for (const double scale : {1.0, 0.3333333333}) {
          for (const size_t inputs_given : {1, 2, 3}) {
            plain.reduce(kind, dtype, scale, {in, inputs_given}, a.data(), kCount, {});
            other->reduce(kind, dtype, scale, {in, inputs_given}, b.data(), kCount, {});
            CHECK(Differences(dtype, a, b, kCount) == 0);
          }
        }
      }
      if (!IsFloat(dtype)) continue;
      plain.combine(dtype, 0.7, in[0], -1.3, in[1], a.data(), kCount, nullptr);
      other->combine(dtype, 0.7, in[0], -1.3, in[1], b.data(), kCount, nullptr);
      CHECK(Differences(dtype, a, b, kCount) == 0);
      // Values of one size, so that sums have ties and dots are finite; in place.
      std::vector<float> near(kCount);
      std::mt19937 random(5);
      for (float& value : near) value = static_cast<float>(random() % 4096) / 64 - 32;
      plain.from_float(dtype, near.data(), inputs[0].data(), kCount);
      std::shuffle(near.begin(), near.end(), random);
      plain.from_float(dtype, near.data(), inputs[1].data(), kCount);
      for (const int64_t count : {1, 15, 16, 17, 33, 1024, 5003}) {
        Dots dots, same;
        plain.dots(dtype, in[0], in[1], count, &dots);
        other->dots(dtype, in[0], in[1], count, &same);
        CHECK(std::memcmp(&dots, &same, sizeof dots) == 0);
        a = inputs[0];
        b = inputs[0];
        const std::byte *to_a[] = {a.data(), in[1]}, *to_b[] = {b.data(), in[1]};
        plain.reduce(ReduceKind::kSum, dtype, 1.0 / 3, {to_a, 2}, a.data(), count, {});
        other->reduce(ReduceKind::kSum, dtype, 1.0 / 3, {to_b, 2}, b.data(), count, {});
        CHECK(Differences(dtype, a, b, kCount) == 0);
        plain.combine(dtype, 0.7, in[1], 1.0 / 3, a.data(), a.data(), count, nullptr);
        other->combine(dtype, 0.7, in[1], 1.0 / 3, b.data(), b.data(), count, nullptr);
        CHECK(Differences(dtype, a, b, kCount) == 0);
      }
    }
  }
}

TEST_CASE("every instruction set rounds fp32 to the 16-bit floats alike, NaN payloads included",
          "[kernels]") {
  const HostKernels& plain = *KernelsFor(Isa::kPlain);
  std::vector<float> values(1 << 18);
  std::mt19937 random(3);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  const auto count = static_cast<int64_t>(values.size());
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const HostKernels* other = KernelsFor(isa);
    if (other == nullptr) continue;
    for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
      std::vector<uint16_t> a(values.size()), b(values.size());
      plain.from_float(dtype, values.data(), reinterpret_cast<std::byte*>(a.data()), count);
      other->from_float(dtype, values.data(), reinterpret_cast<std::byte*>(b.data()), count);
      CHECK(a == b);
      std::vector<uint32_t> wide_a(values.size()), wide_b(values.size());
      plain.to_float(dtype, reinterpret_cast<std::byte*>(a.data()),
                     reinterpret_cast<float*>(wide_a.data()), count);
      other->to_float(dtype, reinterpret_cast<std::byte*>(a.data()),
                      reinterpret_cast<float*>(wide_b.data()), count);
      CHECK(wide_a == wide_b);
    }
  }
}

}  // namespace
}  // namespace horon
