#include "test/support/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace horon::test {
namespace {

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_class_v<T>) {
    return T(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_class_v<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

double Scaled(DataType dtype, double scale, double value) {
  if (scale == 1.0) return value;
  return IsFloat(dtype) ? scale * value : std::trunc(scale * value);
}

double Reduce2(ReduceKind kind, double a, double b) {
  switch (kind) {
    case ReduceKind::kSum:
      return a + b;
    case ReduceKind::kMin:
      return std::min(a, b);
    case ReduceKind::kMax:
      return std::max(a, b);
    case ReduceKind::kProduct:
      return a * b;
  }
  return 0;
}

}  // namespace

Bytes Encode(DataType dtype, const Values& values) {
  Bytes bytes(values.size() * static_cast<size_t>(SizeOf(dtype)));
  WithType(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = FromDouble<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

Values Decode(DataType dtype, std::span<const std::byte> bytes) {
  Values values(bytes.size() / static_cast<size_t>(SizeOf(dtype)));
  WithType(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = ToDouble(value);
    }
  });
  return values;
}

Values SmallValues(DataType dtype, int rank, int64_t count) {
  const bool negative = dtype != DataType::kUInt8 && dtype != DataType::kBool;
  Values values;
  for (int64_t i = 0; i < count; ++i) {
    const auto mixed = static_cast<double>((i * 7 + rank * 3 + i / 11) % 5);
    double value = negative ? mixed - 2 : mixed / 2;  // unsigned: 2^6 fits with room
    if (dtype == DataType::kBool) value = mixed > 1 ? 1 : 0;
    values.push_back(IsFloat(dtype) ? value : std::trunc(value));
  }
  return values;
}

Values Fractions(int rank, int64_t count) {
  Values values;
  for (int64_t i = 0; i < count; ++i) {
    const auto mixed =
        static_cast<uint32_t>(i * 2654435761u + static_cast<uint32_t>(rank) * 40503u);
    values.push_back(static_cast<float>(static_cast<int32_t>(mixed)) / 2147483648.0f);
  }
  return values;
}

Values Reduced(ReduceKind kind, DataType dtype, const std::vector<Values>& by_rank, double prescale,
               double scale) {
  Values result;
  for (size_t i = 0; i < by_rank[0].size(); ++i) {
    double value = Scaled(dtype, prescale, by_rank[0][i]);
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      value = Reduce2(kind, value, Scaled(dtype, prescale, by_rank[rank][i]));
    }
    if (dtype == DataType::kBool) value = std::min(value, 1.0);
    result.push_back(Scaled(dtype, scale, value));
  }
  return result;
}

double Tolerance(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return 0x1p-9;
    case DataType::kBFloat16:
      return 0x1p-6;
    case DataType::kFloat32:
      return 0x1p-20;
    case DataType::kFloat64:
      return 0x1p-49;
    default:
      return 0;
  }
}

bool Near(DataType dtype, const Values& result, const Values& reference) {
  if (result.size() != reference.size()) return false;
  for (size_t i = 0; i < result.size(); ++i) {
    const double allowed = Tolerance(dtype) * std::max(1.0, std::fabs(reference[i]));
    if (!(std::fabs(result[i] - reference[i]) <= allowed)) return false;
  }
  return true;
}

}  // namespace horon::test
