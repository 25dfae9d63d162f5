#include "runtime/peer/accumulator.h"

#include <algorithm>
#include <cstring>

namespace horon {
namespace {

constexpr int64_t kBlock = 1024;  // elements that are widened at once

template <typename T>
T* As(std::byte* at) {
  return reinterpret_cast<T*>(at);
}
template <typename T>
const T* As(const std::byte* at) {
  return reinterpret_cast<const T*>(at);
}

// `count` elements from `from` on, widened into `room` where they are of 16 bits; null stays null.
const float* Widened(DataType dtype, const std::byte* x, int64_t from, int64_t count, float* room) {
  if (x == nullptr) return nullptr;
  const std::byte* at = x + from * SizeOf(dtype);
  if (dtype == DataType::kFloat32) return As<float>(at);
  ToFloat(dtype, at, room, count);
  return room;
}

}  // namespace

Result<Accumulator> Accumulator::Make(Pool& pool, DataType dtype, int64_t count) {
  const int64_t element = dtype == DataType::kFloat64 ? sizeof(double) : sizeof(float);
  HORON_ASSIGN(Buffer sum, pool.Take(count * element));
  return Accumulator(std::move(sum), dtype, count);
}

// step(sum, x, y, count), on blocks of doubles or floats.
template <typename Step>
void Accumulator::Each(const std::byte* x, const std::byte* y, Step step) {
  if (dtype_ == DataType::kFloat64) {
    step(As<double>(sum_.data()), As<double>(x), As<double>(y), count_);
    return;
  }
  float one[kBlock], other[kBlock];
  for (int64_t at = 0; at < count_; at += kBlock) {
    const int64_t count = std::min(kBlock, count_ - at);
    step(As<float>(sum_.data()) + at, Widened(dtype_, x, at, count, one),
         Widened(dtype_, y, at, count, other), count);
  }
}

void Accumulator::Begin(double weight, const std::byte* x) {
  Each(x, nullptr, [weight](auto* sum, const auto* in, const auto*, int64_t count) {
    const auto w = static_cast<std::remove_pointer_t<decltype(sum)>>(weight);
    for (int64_t i = 0; i < count; ++i) sum[i] = w * in[i];
  });
}

void Accumulator::Add(double weight, const std::byte* x) {
  Each(x, nullptr, [weight](auto* sum, const auto* in, const auto*, int64_t count) {
    const auto w = static_cast<std::remove_pointer_t<decltype(sum)>>(weight);
    for (int64_t i = 0; i < count; ++i) sum[i] += w * in[i];
  });
}

void Accumulator::AddDifference(double weight, const std::byte* x, const std::byte* y) {
  Each(x, y, [weight](auto* sum, const auto* in, const auto* out, int64_t count) {
    const auto w = static_cast<std::remove_pointer_t<decltype(sum)>>(weight);
    for (int64_t i = 0; i < count; ++i) sum[i] += w * (in[i] - out[i]);
  });
}

void Accumulator::Store(std::byte* out) const {
  if (dtype_ == DataType::kFloat32 || dtype_ == DataType::kFloat64) {
    if (count_ > 0) std::memcpy(out, sum_.data(), static_cast<size_t>(count_ * SizeOf(dtype_)));
  } else {
    FromFloat(dtype_, As<float>(sum_.data()), out, count_);
  }
}

}  // namespace horon
