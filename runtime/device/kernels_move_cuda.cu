// MoveAll on a GPU: pack and unpack with scaling and conversion.
#include "runtime/device/elements_cuda.h"
#include "runtime/device/kernels_cuda.h"

namespace horon::cuda {
namespace {

// Two kernels of each kind: a table is an argument of a launch, and 14 kB of it take 3 us more than
// a few bytes.
template <int kMost>
using MoveTable = Table<Piece, kMost>;
constexpr int kFew = 8, kMany = 512;

template <typename From, typename To, bool kScaled>
__device__ To Moved(From x, double scale) {
  if constexpr (std::is_same_v<From, To> && !kScaled) {
    return x;
  } else {
    // The wider of the two, fp32 at least: rounded once.
    constexpr bool kDouble = std::is_same_v<From, double> || std::is_same_v<To, double>;
    using W = std::conditional_t<kDouble, double, Wide<From>>;
    const W wide = static_cast<W>(Widen(x));
    return Narrow<To>(kScaled ? Scaled(wide, scale) : wide);
  }
}

// A whole tile whose ends are aligned: all loads first, so that they are under way together.
template <typename From, typename To, bool kScaled>
__device__ void MoveTile(const From* from, To* to, double scale) {
  constexpr int kWidth = kVectorBytes / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  constexpr int kLoads = kTile / kWidth / kThreads;
  static_assert(kLoads >= 1);
  const auto* in = reinterpret_cast<const Vector<From, kWidth>*>(from);
  auto* out = reinterpret_cast<Vector<To, kWidth>*>(to);
  Vector<From, kWidth> loaded[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) loaded[i] = in[i * kThreads + static_cast<int>(threadIdx.x)];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    Vector<To, kWidth> moved;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) moved.at[j] = Moved<From, To, kScaled>(loaded[i].at[j], scale);
    out[i * kThreads + static_cast<int>(threadIdx.x)] = moved;
  }
}

template <typename From, typename To, bool kScaled, int kMost>
__global__ void __launch_bounds__(kThreads)
    MoveKernel(const __grid_constant__ MoveTable<kMost> table, double scale) {
  const int tiles = table.first_tile[table.count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const auto [piece, begin, n] = table.PlaceOf(tile);
    const auto* from = reinterpret_cast<const From*>(piece.from) + begin;
    auto* to = reinterpret_cast<To*>(piece.to) + begin;
    if (n == kTile && AlignedTo(from, kVectorBytes) && AlignedTo(to, kVectorBytes)) {
      MoveTile<From, To, kScaled>(from, to, scale);
      continue;
    }
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads)
      to[i] = Moved<From, To, kScaled>(from[i], scale);
  }
}

// The kernels of these.
template <typename FromType, typename ToType, bool kScaledMove>
struct Movement {
  using From = FromType;
  using To = ToType;
  static constexpr bool kScaled = kScaledMove;
  static constexpr auto kOfFew = MoveKernel<From, To, kScaled, kFew>;
  static constexpr auto kOfMany = MoveKernel<From, To, kScaled, kMany>;
};

template <typename Use>
cudaError_t WithBytes(int64_t size, Use use) {
  switch (size) {
    case 1:
      return use(Movement<uint8_t, uint8_t, false>{});
    case 2:
      return use(Movement<uint16_t, uint16_t, false>{});
    case 4:
      return use(Movement<uint32_t, uint32_t, false>{});
    default:
      return use(Movement<uint64_t, uint64_t, false>{});
  }
}

// A function of its own: where a lambda names the type of what it captures, nvcc's host code has a
// reference to it, and so a kernel that no device code has.
template <typename From, typename Use>
cudaError_t WithConversion(DataType to, Use use) {
  return WithFloat(to, [&](auto zero) {
    using To = decltype(zero);
    if constexpr (std::is_same_v<From, To>) {
      return cudaErrorInvalidValue;  // no conversion
    } else {
      return use(Movement<From, To, true>{});
    }
  });
}

// Calls use with the Movement that this takes.
template <typename Use>
cudaError_t WithMovement(DataType from, DataType to, bool scaled, Use use) {
  if (from == to && (!scaled || from == DataType::kBool)) return WithBytes(SizeOf(from), use);
  if (from == to) {
    return WithElement(from, [&](auto zero) {
      using T = decltype(zero);
      return use(Movement<T, T, true>{});
    });
  }
  return WithFloat(from, [&](auto zero) { return WithConversion<decltype(zero)>(to, use); });
}

template <typename M, int kMost>
cudaError_t LaunchOf(void (*kernel)(MoveTable<kMost>, double), std::span<const Piece> pieces,
                     double scale, cudaStream_t stream) {
  const auto cut = [](const Piece& piece, int64_t begin, int64_t count) {
    constexpr auto kFrom = static_cast<int64_t>(sizeof(typename M::From)),
                   kTo = static_cast<int64_t>(sizeof(typename M::To));
    return Piece{piece.from + begin * kFrom, piece.to + begin * kTo, count};
  };
  return InTables<MoveTable<kMost>>(pieces, cut, [&](const MoveTable<kMost>& table) {
    const unsigned blocks = BlocksFor(table.first_tile[table.count]);
    kernel<<<blocks, kThreads, 0, stream>>>(table, scale);
    return cudaGetLastError();
  });
}

template <typename M>
cudaError_t Launch(M, std::span<const Piece> pieces, double scale, cudaStream_t stream) {
  return pieces.size() <= kFew ? LaunchOf<M, kFew>(M::kOfFew, pieces, scale, stream)
                               : LaunchOf<M, kMany>(M::kOfMany, pieces, scale, stream);
}

}  // namespace

cudaError_t Move(DataType from, DataType to, double scale, std::span<const Piece> pieces,
                 cudaStream_t stream) {
  return WithMovement(from, to, scale != 1.0,
                      [&](auto movement) { return Launch(movement, pieces, scale, stream); });
}

cudaError_t LoadMoves() {
  const auto load = [](auto movement) {
    const cudaError_t error = Load(decltype(movement)::kOfFew);
    return error != cudaSuccess ? error : Load(decltype(movement)::kOfMany);
  };
  const cudaError_t error = ForEach(kElementTypes, [&](DataType dtype) {
    const cudaError_t plain = WithMovement(dtype, dtype, false, load);
    return plain != cudaSuccess ? plain : WithMovement(dtype, dtype, true, load);
  });
  if (error != cudaSuccess) return error;
  return ForEach(kFloatTypes, [&](DataType from) {
    return ForEach(kFloatTypes, [&](DataType to) {
      return from == to ? cudaSuccess : WithMovement(from, to, true, load);
    });
  });
}

}  // namespace horon::cuda
