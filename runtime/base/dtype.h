// Element types: their names, sizes and, for the two 16-bit floats, their conversion to fp32.
// The numbers are part of the C API (horon_dtype) and of the wire; they never change.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace horon {

enum class DataType : uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kBFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
};
inline constexpr int kDataTypes = 10;

int64_t SizeOf(DataType dtype);           // bytes of one element
std::string_view NameOf(DataType dtype);  // "float32"
bool IsFloat(DataType dtype);

// IEEE binary16, stored; arithmetic happens in fp32. Rounds to nearest even, keeps NaN and Inf.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

// bfloat16: the upper half of an fp32. Rounds to nearest even, keeps NaN and Inf.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<uint16_t>((word >> 16) | 0x40u)
               : static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

// Calls f with a value of the C++ type of `dtype` (bool as uint8_t is not done here: bool is bool).
template <typename F>
decltype(auto) WithType(DataType dtype, F&& f) {
  switch (dtype) {
    case DataType::kUInt8:
      return f(uint8_t{});
    case DataType::kInt8:
      return f(int8_t{});
    case DataType::kInt16:
      return f(int16_t{});
    case DataType::kInt32:
      return f(int32_t{});
    case DataType::kInt64:
      return f(int64_t{});
    case DataType::kFloat16:
      return f(Float16{});
    case DataType::kBFloat16:
      return f(BFloat16{});
    case DataType::kFloat32:
      return f(float{});
    case DataType::kFloat64:
      return f(double{});
    case DataType::kBool:
      return f(bool{});
  }
  __builtin_unreachable();  // every decoder checks the number before it becomes a DataType
}

}  // namespace horon
