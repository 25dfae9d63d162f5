#include <algorithm>
#include <type_traits>

#include "runtime/base/check.h"
#include "runtime/device/batch.h"

namespace horon {
namespace {

constexpr int64_t kBlock = 2048;  // elements that are widened at once

// Calls f with a value of the floating type `dtype`.
template <typename F>
void WithFloat(DataType dtype, F f) {
  HORON_CHECK(IsFloat(dtype), "a batch for floating dtypes only");
  WithType(dtype, [&](auto zero) {
    if constexpr (!std::is_integral_v<decltype(zero)>) f(zero);
  });
}

template <typename T>
double Widened(T value) {
  if constexpr (std::is_class_v<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <typename T>
T Narrowed(double value) {
  if constexpr (std::is_class_v<T>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// One of the two is fp64.
void MoveInDouble(DataType from, DataType to, double scale, const Piece& piece) {
  WithFloat(from, [&](auto from_zero) {
    WithFloat(to, [&](auto to_zero) {
      const auto* in = reinterpret_cast<const decltype(from_zero)*>(piece.from);
      auto* out = reinterpret_cast<decltype(to_zero)*>(piece.to);
      for (int64_t i = 0; i < piece.count; ++i)
        out[i] = Narrowed<decltype(to_zero)>(scale * Widened(in[i]));
    });
  });
}

void MoveInFloat(DataType from, DataType to, double scale, const Piece& piece) {
  float block[kBlock];
  for (int64_t begin = 0; begin < piece.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, piece.count - begin);
    ToFloat(from, piece.from + begin * SizeOf(from), block, n);
    auto* bytes = reinterpret_cast<std::byte*>(block);
    ScaleInto(DataType::kFloat32, scale, bytes, bytes, n);
    FromFloat(to, block, piece.to + begin * SizeOf(to), n);
  }
}

}  // namespace

bool CanMove(DataType from, DataType to) { return from == to || (IsFloat(from) && IsFloat(to)); }

void MoveAll(DataType from, DataType to, double scale, std::span<const Piece> pieces) {
  HORON_CHECK(CanMove(from, to), "only floating dtypes are converted into each other");
  const bool wide = from == DataType::kFloat64 || to == DataType::kFloat64;
  for (const Piece& piece : pieces) {
    if (from == to) {
      ScaleInto(from, scale, piece.from, piece.to, piece.count);
    } else if (wide) {
      MoveInDouble(from, to, scale, piece);
    } else {
      MoveInFloat(from, to, scale, piece);
    }
  }
}

void DotAll(DataType dtype, std::span<const Pair> pairs, Dots* sums) {
  for (size_t i = 0; i < pairs.size(); ++i) {
    sums[i] = Dots{};
    AddDots(dtype, pairs[i].x, pairs[i].y, pairs[i].count, &sums[i]);
  }
}

void CombineAll(DataType dtype, std::span<const Pair> pairs) {
  for (const Pair& pair : pairs) {
    const Coefficients c = pair.by != nullptr ? *pair.by : Coefficients{pair.a, pair.b};
    CombineInto(dtype, c.a, pair.x, c.b, pair.y, pair.out, pair.count);
  }
}

void WeighAll(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
              Coefficients* out) {
  for (int64_t t = 0; t < tensors; ++t) out[t] = CoefficientsOf(parts, rows, tensors, t, how);
}

// The products are stored, so that none is contracted with the sum that it feeds.
void MixInto(DataType dtype, std::span<const double> weights,
             std::span<const std::byte* const> inputs, std::byte* out, int64_t count) {
  HORON_CHECK(!inputs.empty() && inputs.size() == weights.size(), "a weight for each input");
  const DataType wide = dtype == DataType::kFloat64 ? dtype : DataType::kFloat32;
  alignas(64) std::byte sum[kBlock * 8], product[kBlock * 8];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin), at = begin * SizeOf(dtype);
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::byte* to = i == 0 ? sum : product;
      const Piece widened{inputs[i] + at, to, n};
      MoveAll(dtype, wide, 1.0, {&widened, 1});
      ScaleInto(wide, weights[i], to, to, n);
      const std::byte* both[] = {sum, product};
      if (i > 0) ReduceInto(ReduceKind::kSum, wide, 1.0, both, sum, n);
    }
    const Piece narrowed{sum, out + at, n};
    MoveAll(wide, dtype, 1.0, {&narrowed, 1});
  }
}

}  // namespace horon
