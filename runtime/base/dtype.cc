#include "runtime/base/dtype.h"

#include <array>

namespace horon {
namespace {

struct Facts {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<Facts, kDataTypes> kFacts = {{{"uint8", 1},
                                                   {"int8", 1},
                                                   {"int16", 2},
                                                   {"int32", 4},
                                                   {"int64", 8},
                                                   {"float16", 2},
                                                   {"bfloat16", 2},
                                                   {"float32", 4},
                                                   {"float64", 8},
                                                   {"bool", 1}}};

}  // namespace

int64_t SizeOf(DataType dtype) { return kFacts[static_cast<size_t>(dtype)].bytes; }
std::string_view NameOf(DataType dtype) { return kFacts[static_cast<size_t>(dtype)].name; }

bool IsFloat(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBFloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

// Subnormals take the arithmetic way: adding a magic number lets the FPU round them.
Float16::Float16(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
  const uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) {  // Inf or NaN
    bits = static_cast<uint16_t>(sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0u));
  } else if (magnitude >= 0x477ff000u) {  // rounds past 65504
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // below 2^-14: subnormal or zero
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  } else {
    const uint32_t odd = (magnitude >> 13) & 1u;
    bits = static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  if (magnitude >= (0x7c00u << 13))
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x7fffffu));
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;  // exact, subnormals included
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

}  // namespace horon
