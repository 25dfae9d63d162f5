// ReduceInto and MixInto on a GPU: several inputs of one length, element by element, left to right.
#include "runtime/device/elements_cuda.h"
#include "runtime/device/kernels_cuda.h"
#include "runtime/device/stream.h"

namespace horon::cuda {
namespace {

struct Inputs {
  const std::byte* at[Stream::kMostInputs];
  double weights[Stream::kMostInputs];
  int count;
  bool aligned;  // they and the output
};

template <typename T>
struct SumOf {
  __device__ static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using M = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;  // wraps
      return static_cast<T>(static_cast<M>(a) + static_cast<M>(b));
    } else {
      return a + b;
    }
  }
};
template <typename T>
struct ProductOf {
  __device__ static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using M = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
      return static_cast<T>(static_cast<M>(a) * static_cast<M>(b));
    } else {
      return a * b;
    }
  }
};
// NaN wins.
template <typename T>
struct MinOf {
  __device__ static T Of(T a, T b) { return a < b || a != a ? a : b; }
};
template <typename T>
struct MaxOf {
  __device__ static T Of(T a, T b) { return a > b || a != a ? a : b; }
};
struct OrOf {
  __device__ static uint8_t Of(uint8_t a, uint8_t b) { return (a | b) != 0 ? 1 : 0; }
};
struct AndOf {
  __device__ static uint8_t Of(uint8_t a, uint8_t b) { return a != 0 && b != 0 ? 1 : 0; }
};

// A thread's vector of the result, from the same vector of every input.
template <typename T, int kWidth, typename Fold>
__device__ Vector<T, kWidth> Reduced(const Inputs& inputs, int64_t at, double scale) {
  Wide<T> sum[kWidth];
  for (int i = 0; i < inputs.count; ++i) {
    const auto next =
        *reinterpret_cast<const Vector<T, kWidth>*>(reinterpret_cast<const T*>(inputs.at[i]) + at);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Wide<T> x = Widen(next.at[j]);
      sum[j] = i == 0 ? x : Fold::Of(sum[j], x);
    }
  }
  Vector<T, kWidth> result;
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    result.at[j] = Narrow<T>(scale == 1.0 ? sum[j] : Scaled(sum[j], scale));
  return result;
}

template <typename T, int kWidth>
__device__ Vector<T, kWidth> Mixed(const Inputs& inputs, int64_t at) {
  Wide<T> sum[kWidth];
  for (int i = 0; i < inputs.count; ++i) {
    const auto weight = static_cast<Wide<T>>(inputs.weights[i]);
    const auto next =
        *reinterpret_cast<const Vector<T, kWidth>*>(reinterpret_cast<const T*>(inputs.at[i]) + at);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Wide<T> product = weight * Widen(next.at[j]);
      sum[j] = i == 0 ? product : sum[j] + product;
    }
  }
  Vector<T, kWidth> result;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) result.at[j] = Narrow<T>(sum[j]);
  return result;
}

// Fold: void mixes.
template <typename T, int kWidth, typename Fold>
__device__ Vector<T, kWidth> Result(const Inputs& inputs, int64_t at, double scale) {
  if constexpr (std::is_void_v<Fold>) {
    return Mixed<T, kWidth>(inputs, at);
  } else {
    return Reduced<T, kWidth, Fold>(inputs, at, scale);
  }
}

template <typename T, typename Fold>
__global__ void __launch_bounds__(kThreads)
    FoldKernel(const __grid_constant__ Inputs inputs, double scale, T* out, int64_t count) {
  constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t vectors = inputs.aligned ? count / kWidth : 0;
  for (int64_t i = thread; i < vectors; i += stride) {
    *reinterpret_cast<Vector<T, kWidth>*>(out + i * kWidth) =
        Result<T, kWidth, Fold>(inputs, i * kWidth, scale);
  }
  for (int64_t i = vectors * kWidth + thread; i < count; i += stride)
    out[i] = Result<T, 1, Fold>(inputs, i, scale).at[0];
}

// A kernel of these.
template <typename Element, typename FoldType>
struct Folding {
  using T = Element;
  using Fold = FoldType;
  static constexpr auto kKernel = FoldKernel<T, Fold>;
};

template <typename F>
cudaError_t Launch(F, const Inputs& inputs, double scale, std::byte* out, int64_t count,
                   cudaStream_t stream) {
  const unsigned blocks = BlocksFor(TilesOf(count));
  F::kKernel<<<blocks, kThreads, 0, stream>>>(inputs, scale, reinterpret_cast<typename F::T*>(out),
                                              count);
  return cudaGetLastError();
}

template <typename T, typename Use>
cudaError_t WithKind(ReduceKind kind, Use use) {
  using W = Wide<T>;
  switch (kind) {
    case ReduceKind::kSum:
      return use(Folding<T, SumOf<W>>{});
    case ReduceKind::kMin:
      return use(Folding<T, MinOf<W>>{});
    case ReduceKind::kMax:
      return use(Folding<T, MaxOf<W>>{});
    case ReduceKind::kProduct:
      return use(Folding<T, ProductOf<W>>{});
  }
  return cudaErrorInvalidValue;
}

// Calls use with the Folding that this takes.
template <typename Use>
cudaError_t WithFolding(ReduceKind kind, DataType dtype, Use use) {
  if (dtype != DataType::kBool)
    return WithElement(dtype, [&](auto zero) { return WithKind<decltype(zero)>(kind, use); });
  if (kind == ReduceKind::kSum || kind == ReduceKind::kMax) return use(Folding<uint8_t, OrOf>{});
  return use(Folding<uint8_t, AndOf>{});
}

template <typename Use>
cudaError_t WithMixing(DataType dtype, Use use) {
  return WithFloat(dtype, [&](auto zero) { return use(Folding<decltype(zero), void>{}); });
}

Inputs InputsOf(std::span<const std::byte* const> inputs, const std::byte* out) {
  Inputs made{};
  made.count = static_cast<int>(inputs.size());
  made.aligned = AlignedTo(out, kVectorBytes);
  for (size_t i = 0; i < inputs.size(); ++i) {
    made.at[i] = inputs[i];
    made.aligned = made.aligned && AlignedTo(inputs[i], kVectorBytes);
  }
  return made;
}

}  // namespace

cudaError_t Reduce(ReduceKind kind, DataType dtype, double scale,
                   std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                   cudaStream_t stream) {
  if (inputs.empty() || inputs.size() > Stream::kMostInputs) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  if (dtype == DataType::kBool && inputs.size() == 1) {
    const Piece piece{inputs[0], out, count};
    return Move(dtype, dtype, 1.0, {&piece, 1}, stream);
  }
  const Inputs made = InputsOf(inputs, out);
  const double applied = dtype == DataType::kBool ? 1.0 : scale;
  return WithFolding(kind, dtype, [&](auto folding) {
    return Launch(folding, made, applied, out, count, stream);
  });
}

cudaError_t Mix(DataType dtype, std::span<const double> weights,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                cudaStream_t stream) {
  if (inputs.empty() || inputs.size() > Stream::kMostInputs || weights.size() != inputs.size())
    return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  Inputs made = InputsOf(inputs, out);
  std::copy(weights.begin(), weights.end(), made.weights);
  return WithMixing(dtype,
                    [&](auto folding) { return Launch(folding, made, 1.0, out, count, stream); });
}

cudaError_t LoadReductions() {
  const auto load = [](auto folding) { return Load(decltype(folding)::kKernel); };
  const cudaError_t error = ForEach(kElementTypes, [&](DataType dtype) {
    for (const ReduceKind kind :
         {ReduceKind::kSum, ReduceKind::kProduct, ReduceKind::kMax, ReduceKind::kMin}) {
      const cudaError_t loaded = WithFolding(kind, dtype, load);
      if (loaded != cudaSuccess) return loaded;
    }
    return cudaSuccess;
  });
  if (error != cudaSuccess) return error;
  return ForEach(kFloatTypes, [&](DataType dtype) { return WithMixing(dtype, load); });
}

}  // namespace horon::cuda
