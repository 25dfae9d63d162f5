// What a tensor is to the runtime: a device, a shape, and bytes that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"

namespace horon {

enum class DeviceKind : uint8_t { kHost = 0, kCuda = 1 };

struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int32_t index = 0;  // CUDA ordinal; 0 on the host
  bool operator==(const Device&) const = default;
};

using Shape = std::vector<int64_t>;  // elements per dimension; empty is a scalar

int64_t CountOf(const Shape& shape);       // elements
std::string ToString(const Shape& shape);  // "[2, 3]"
std::string ToString(Device device);       // "CPU", "GPU 0"

// A run of bytes in somebody's memory. Not owned.
struct Span {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

}  // namespace horon
