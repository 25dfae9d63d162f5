// The same inputs give the same bits on every instruction set that this CPU has, and on every
// architecture (kernels_on_aarch64 in CTest runs this there).
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "runtime/device/kernels_host.h"
#include "test/support/catch.h"
#include "test/unit/device/elements.h"
#include "test/unit/device/vector_sets.h"

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
  for (const auto& [name, other] : test::VectorSets()) {
    for (int type = 0; type < kDataTypes; ++type) {
      const auto dtype = static_cast<DataType>(type);
      std::vector<Elements> inputs;
      for (unsigned k = 0; k < 3; ++k) inputs.push_back(RandomBits(dtype, kCount, 10 + k));
      const std::byte* in[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
      Elements a(dtype, kCount), b(dtype, kCount);
      INFO(NameOf(dtype) << " by " << name);
      for (const ReduceKind kind : kKinds) {
        // A NaN of all ones would be a zero if it were rounded as a number.
        for (const double scale : {1.0, 0.3333333333, std::bit_cast<double>(~uint64_t{0})}) {
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
  for (const auto& [name, other] : test::VectorSets()) {
    for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
      INFO(NameOf(dtype) << " by " << name);
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

// No set asks for NaNs where it stores sums of bf16: rounding has to leave each of them alone.
TEST_CASE("every instruction set keeps every NaN of bf16", "[kernels]") {
  constexpr int64_t kCount = 1 << 16;
  constexpr DataType kType = DataType::kBFloat16;
  const HostKernels& plain = *KernelsFor(Isa::kPlain);
  const double all_ones = std::bit_cast<double>(~uint64_t{0});
  Elements all(kType, kCount), other_input = all, a = all, b = all;
  const auto put = [](Elements* elements, int64_t i, int64_t bits) {
    const auto stored = static_cast<uint16_t>(bits);
    std::memcpy(elements->data() + 2 * i, &stored, sizeof stored);
  };
  for (int64_t i = 0; i < kCount; ++i) put(&all, i, i);
  for (const auto& [name, other] : test::VectorSets()) {
    for (const int bits : {0x0000, 0x3f80, 0x7f7f, 0x7f80, 0xff80, 0x7f81, 0x7fff, 0xffff}) {
      for (int64_t i = 0; i < kCount; ++i) put(&other_input, i, bits);
      for (const bool swapped : {false, true}) {
        const std::byte* in[] = {all.data(), other_input.data()};
        if (swapped) std::swap(in[0], in[1]);
        INFO(name << ", " << bits << (swapped ? " before all" : " after all"));
        for (const double factor : {1.0, -0.5, HUGE_VAL, all_ones}) {
          plain.reduce(ReduceKind::kSum, kType, factor, {in, 2}, a.data(), kCount, {});
          other->reduce(ReduceKind::kSum, kType, factor, {in, 2}, b.data(), kCount, {});
          CHECK(Differences(kType, a, b, kCount) == 0);
          plain.combine(kType, 0.7, in[0], factor, in[1], a.data(), kCount, nullptr);
          other->combine(kType, 0.7, in[0], factor, in[1], b.data(), kCount, nullptr);
          CHECK(Differences(kType, a, b, kCount) == 0);
        }
      }
    }
  }
}

TEST_CASE("every instruction set widens every 16-bit float alike", "[kernels]") {
  const HostKernels& plain = *KernelsFor(Isa::kPlain);
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto* const in = reinterpret_cast<const std::byte*>(all.data());
  const auto count = static_cast<int64_t>(all.size());
  for (const auto& [name, other] : test::VectorSets()) {
    for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
      std::vector<uint32_t> a(all.size()), b(all.size());
      plain.to_float(dtype, in, reinterpret_cast<float*>(a.data()), count);
      other->to_float(dtype, in, reinterpret_cast<float*>(b.data()), count);
      INFO(NameOf(dtype) << " by " << name);
      CHECK(a == b);
    }
  }
}

// A sum over the bits of all results; every NaN counts alike.
class BitsSeen {
 public:
  void Add(uint64_t bits) { sum_ = (sum_ ^ bits) * 0x100000001b3; }
  void Add(DataType dtype, const Elements& elements, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, elements.data() + i * SizeOf(dtype), static_cast<size_t>(SizeOf(dtype)));
      Add(std::isnan(elements.at(i)) ? ~uint64_t{0} : bits);
    }
  }
  uint64_t sum() const { return sum_; }

 private:
  uint64_t sum_ = 0xcbf29ce484222325;
};

TEST_CASE("the bits are those of every other architecture", "[kernels]") {
  constexpr int64_t kCount = 1003;
  const HostKernels& plain = *KernelsFor(Isa::kPlain);
  BitsSeen seen;
  for (int type = 0; type < kDataTypes; ++type) {
    const auto dtype = static_cast<DataType>(type);
    std::vector<Elements> inputs;
    for (unsigned k = 0; k < 3; ++k) inputs.push_back(RandomBits(dtype, kCount, 20 + k));
    const std::byte* in[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
    Elements out(dtype, kCount);
    for (const ReduceKind kind : kKinds) {
      for (const double scale : {1.0, 1.0 / 3}) {
        plain.reduce(kind, dtype, scale, {in, 3}, out.data(), kCount, {});
        seen.Add(dtype, out, kCount);
      }
    }
    if (!IsFloat(dtype)) continue;
    // Of one size, so that what a contraction would change is not lost beside the larger one.
    std::vector<float> near(kCount);
    std::mt19937 random(8);
    for (float& value : near) value = static_cast<float>(random() % 4096) / 63 - 32;
    plain.from_float(dtype, near.data(), inputs[0].data(), kCount);
    std::reverse(near.begin(), near.end());
    plain.from_float(dtype, near.data(), inputs[1].data(), kCount);
    plain.combine(dtype, 0.7, in[0], 1.0 / 3, in[1], out.data(), kCount, nullptr);
    seen.Add(dtype, out, kCount);
    Dots dots;
    plain.dots(dtype, in[0], in[1], kCount, &dots);
    for (const double dot : {dots.ab, dots.aa, dots.bb}) seen.Add(std::bit_cast<uint64_t>(dot));
  }
  CHECK(seen.sum() == 0x0be52aa2a7d65b73);
}

}  // namespace
}  // namespace horon
