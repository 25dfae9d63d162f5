#include "ops/compression/topk_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "runtime/device/kernels.h"

namespace horon::topk {
namespace {

// Largest finite values of the narrow types; what lies beyond would be rounded to infinity.
constexpr float kLargestFloat16 = 65504.0f;
constexpr float kLargestBFloat16 = std::bit_cast<float>(0x7f7f0000u);
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr auto kWord = static_cast<int64_t>(sizeof(uint32_t));

// Orders like |value|, with all NaNs equal and above infinity.
uint32_t Magnitude(float value) {
  return std::min(std::bit_cast<uint32_t>(value) & 0x7fffffffu, kInfinity + 1);
}

float Narrowable(float value, DataType values) {
  if (values == DataType::kFloat32 || !std::isfinite(value)) return value;
  const float largest = values == DataType::kFloat16 ? kLargestFloat16 : kLargestBFloat16;
  return std::clamp(value, -largest, largest);
}

}  // namespace

int64_t MessageBytes(int64_t k, DataType values) {
  const int64_t bytes = kWord + k * (kWord + SizeOf(values));
  return (bytes + kWord - 1) / kWord * kWord;
}

void Select(const float* p, int64_t n, int64_t k, uint32_t* order) {
  std::iota(order, order + n, 0u);
  if (k < n) {
    std::nth_element(order, order + k, order + n, [p](uint32_t a, uint32_t b) {
      const uint32_t first = Magnitude(p[a]), second = Magnitude(p[b]);
      return first != second ? first > second : a < b;
    });
  }
  std::sort(order, order + k);
}

void Encode(std::span<float> p, std::span<const uint32_t> chosen, DataType values,
            std::byte* message) {
  const auto k = static_cast<uint32_t>(chosen.size());
  std::memcpy(message, &k, sizeof k);
  if (k > 0) std::memcpy(message + kWord, chosen.data(), chosen.size_bytes());
  std::byte* value = message + kWord + k * kWord;
  uint32_t finite = 0;
  for (const uint32_t index : chosen) {
    const float sent = Narrowable(p[index], values);
    float received;
    FromFloat(values, &sent, value, 1);
    ToFloat(values, value, &received, 1);
    if (std::isfinite(received)) {
      p[index] -= received;
      ++finite;
    } else {
      p[index] = 0;
    }
    value += SizeOf(values);
  }
  if (finite == 0) {  // they count as the largest: there may be more of them
    std::replace_if(p.begin(), p.end(), [](float v) { return !std::isfinite(v); }, 0.0f);
  }
  std::memset(value, 0, static_cast<size_t>(message + MessageBytes(k, values) - value));
}

Status AddDecoded(const std::byte* message, int64_t k, DataType values, float* sum, int64_t n) {
  uint32_t count;
  std::memcpy(&count, message, sizeof count);
  if (count != k) {
    return Status::Internal("a top-k message of " + std::to_string(count) + " elements, expected " +
                            std::to_string(k));
  }
  const std::byte* value = message + kWord + k * kWord;
  int64_t previous = -1;
  for (int64_t i = 0; i < k; ++i) {
    uint32_t index;
    float decoded;
    std::memcpy(&index, message + kWord + i * kWord, sizeof index);
    if (index <= previous || index >= n) {
      return Status::Internal("a top-k message with index " + std::to_string(index) +
                              " out of order");
    }
    previous = index;
    ToFloat(values, value + i * SizeOf(values), &decoded, 1);
    sum[index] += decoded;
  }
  return Status::Ok();
}

}  // namespace horon::topk
