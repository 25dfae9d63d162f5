// A run of elements of any dtype, read and written as doubles, for the tests of kernels.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/base/dtype.h"

namespace horon::test {

inline double Get(DataType dtype, const std::byte* at) {
  return WithType(dtype, [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    if constexpr (std::is_class_v<decltype(value)>) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  });
}
inline void Set(DataType dtype, std::byte* at, double number) {
  WithType(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_class_v<T>) {
      const T value(static_cast<float>(number));
      std::memcpy(at, &value, sizeof value);
    } else {
      const T value = static_cast<T>(number);
      std::memcpy(at, &value, sizeof value);
    }
  });
}

// A run of elements that begins `shift` elements into its allocation, with a guard behind it.
class Elements {
 public:
  Elements(DataType dtype, int64_t count, int64_t shift = 0)
      : dtype_(dtype), count_(count), offset_(static_cast<size_t>(shift * SizeOf(dtype))) {
    bytes_.assign(offset_ + static_cast<size_t>(count * SizeOf(dtype)) + kGuard, kPaint);
  }
  std::byte* data() { return bytes_.data() + offset_; }
  const std::byte* data() const { return bytes_.data() + offset_; }
  double at(int64_t i) const { return Get(dtype_, data() + i * SizeOf(dtype_)); }
  void set(int64_t i, double value) { Set(dtype_, data() + i * SizeOf(dtype_), value); }
  bool guarded() const {
    return std::all_of(data() + count_ * SizeOf(dtype_), bytes_.data() + bytes_.size(),
                       [](std::byte b) { return b == kPaint; });
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr std::byte kPaint{0x5a};
  DataType dtype_;
  int64_t count_;
  size_t offset_;
  std::vector<std::byte> bytes_;
};

}  // namespace horon::test
