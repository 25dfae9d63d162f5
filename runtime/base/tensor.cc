#include "runtime/base/tensor.h"

namespace horon {

int64_t CountOf(const Shape& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string ToString(Device device) {
  return device.kind == DeviceKind::kHost ? "CPU" : "GPU " + std::to_string(device.index);
}

}  // namespace horon
