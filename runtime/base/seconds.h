// A duration as sentences name it: "0.3 s", "45 s".
#pragma once

#include <chrono>
#include <string>

namespace horon {

inline std::string Seconds(std::chrono::milliseconds time) {
  const auto tenths = time.count() / 100;
  return tenths >= 100 ? std::to_string(tenths / 10) + " s"
                       : std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace horon
