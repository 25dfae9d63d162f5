#include "runtime/device/mix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/kernels.h"

namespace horon {
namespace {

constexpr int64_t kMixBlock = 2048;  // elements: some blocks of them stay in the level-1 cache

// The sum of all weights is 1, as far as rounded weights can say so.
bool SumsToOne(double self, std::span<const Heard> others) {
  for (const Heard& other : others) self += other.weight;
  return std::fabs(self - 1) < 1e-12;
}

// `n` elements at `at`, as numbers of the type that they are added in.
const std::byte* WidenedForMixing(DataType dtype, const std::byte* at, float* room, int64_t n) {
  if (SizeOf(dtype) > 2) return at;
  ToFloat(dtype, at, room, n);
  return reinterpret_cast<const std::byte*>(room);
}

// In difference form nothing is lost where all are equal: sum = own + w (other - own) + ...
void AddHeard(DataType wide, bool differences, const std::byte* own, const std::byte* other,
              double weight, std::byte* sum, std::byte* room, int64_t n) {
  if (differences) {
    CombineInto(wide, 1, other, -1, own, room, n);
    other = room;
  }
  CombineInto(wide, 1, sum, weight, other, sum, n);
}

void MixBlock(DataType dtype, double factor, double self, const std::byte* own,
              std::span<const Heard> others, int64_t begin, bool differences, std::byte* out,
              int64_t n) {
  alignas(64) double sum_room[kMixBlock], difference_room[kMixBlock];
  alignas(64) float own_room[kMixBlock], other_room[kMixBlock];
  const DataType wide = dtype == DataType::kFloat64 ? dtype : DataType::kFloat32;
  const int64_t at = begin * SizeOf(dtype);
  auto* const sum = reinterpret_cast<std::byte*>(sum_room);
  auto* const room = reinterpret_cast<std::byte*>(difference_room);
  const std::byte* const mine = WidenedForMixing(dtype, own + at, own_room, n);
  ScaleInto(wide, differences ? 1.0 : self, mine, sum, n);
  for (const Heard& other : others) {
    const std::byte* theirs = WidenedForMixing(dtype, other.data + at, other_room, n);
    AddHeard(wide, differences, mine, theirs, other.weight, sum, room, n);
  }
  if (factor != 1.0) ScaleInto(wide, factor, sum, sum, n);
  if (SizeOf(dtype) > 2) {
    std::memcpy(out + at, sum, static_cast<size_t>(n * SizeOf(dtype)));
  } else {
    FromFloat(dtype, reinterpret_cast<const float*>(sum), out + at, n);
  }
}

}  // namespace

void MixHeard(DataType dtype, double factor, double self, const std::byte* own,
              std::span<const Heard> others, std::byte* out, int64_t count) {
  if (others.empty()) {
    ScaleInto(dtype, factor * self, own, out, count);
    return;
  }
  const bool halves = others.size() == 1 && self == 0.5 && others[0].weight == 0.5;
  if (halves) {  // exact as it is, in one pass
    CombineInto(dtype, 0.5 * factor, own, 0.5 * factor, others[0].data, out, count);
    return;
  }
  const bool differences = SumsToOne(self, others);
  for (int64_t begin = 0; begin < count; begin += kMixBlock)
    MixBlock(dtype, factor, self, own, others, begin, differences, out,
             std::min(kMixBlock, count - begin));
}

}  // namespace horon
