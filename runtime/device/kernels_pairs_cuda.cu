// Adasum's two passes on a GPU: the inner products of all pairs of a batch, and their combination;
// between the two what each tensor's products weigh.
//
// The products are summed in double, in two stages: a block of threads sums a tile and stores what
// it got, and a second kernel adds the tiles of each pair. Both in a fixed order, without atomics,
// so the bits are the same in every run, on every GPU. A thread's share of a tile of 16-bit floats
// is summed in fp32, which holds their products exactly, where it can hold the sums.
#include "runtime/device/elements_cuda.h"
#include "runtime/device/kernels_cuda.h"

namespace horon::cuda {
namespace {

using PairTable = Table<Pair, 400>;
constexpr int kWarp = 32;

__device__ Dots Plus(const Dots& a, const Dots& b) {
  return Dots{a.ab + b.ab, a.aa + b.aa, a.bb + b.bb};
}

// The sum over the block, on its first thread.
__device__ Dots SumOverBlock(Dots mine) {
  __shared__ Dots of_warps[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    mine.ab += __shfl_down_sync(0xffffffffu, mine.ab, offset);
    mine.aa += __shfl_down_sync(0xffffffffu, mine.aa, offset);
    mine.bb += __shfl_down_sync(0xffffffffu, mine.bb, offset);
  }
  __syncthreads();  // the last call's sums have been read
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Dots sum{};
  if (threadIdx.x == 0)
    for (const Dots& warp : of_warps) sum = Plus(sum, warp);
  return sum;
}

// Calls add(x[i], y[i]) for this thread's share of a tile, in the order of i.
template <typename T, typename Add>
__device__ void ForEachOfThread(const T* x, const T* y, int n, Add add) {
  constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  const bool aligned = AlignedTo(x, kVectorBytes) && AlignedTo(y, kVectorBytes);
  const int vectors = aligned ? n / kWidth : 0;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    const auto a = reinterpret_cast<const Vector<T, kWidth>*>(x)[i];
    const auto b = reinterpret_cast<const Vector<T, kWidth>*>(y)[i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) add(a.at[j], b.at[j]);
  }
  for (int i = vectors * kWidth + static_cast<int>(threadIdx.x); i < n; i += kThreads)
    add(x[i], y[i]);
}

template <typename T>
__device__ Dots DotTile(const T* x, const T* y, int n) {
  Dots sum{};
  ForEachOfThread(x, y, n, [&](T a, T b) {
    const auto u = static_cast<double>(Widen(a)), v = static_cast<double>(Widen(b));
    sum.ab = fma(u, v, sum.ab);
    sum.aa = fma(u, u, sum.aa);
    sum.bb = fma(v, v, sum.bb);
  });
  return sum;
}

// Whether fp32 held all products under this sum of squares (kernels_host.cc).
__device__ bool HeldInFp32(float squares) { return squares > 0x1p-80f && isfinite(squares); }

// Of both signs.
__device__ bool IsZero(unsigned bits_of_bf16) { return (bits_of_bf16 & 0x7fff) == 0; }

template <typename T>
__device__ Dots DotTileOf16(const T* x, const T* y, int n) {
  static_assert(kTile / kThreads <= 64, "as few as on the host");
  constexpr bool kMayLeave = std::is_same_v<T, __nv_bfloat16>;  // fp32's range
  float ab = 0, aa = 0, bb = 0;
  unsigned all_a = 0, all_b = 0;
  ForEachOfThread(x, y, n, [&](T a, T b) {
    const float u = Widen(a), v = Widen(b);
    ab = fmaf(u, v, ab);
    aa = fmaf(u, u, aa);
    bb = fmaf(v, v, bb);
    if constexpr (kMayLeave) {
      all_a |= __bfloat16_as_ushort(a);
      all_b |= __bfloat16_as_ushort(b);
    }
  });
  const bool held =
      !kMayLeave || ((HeldInFp32(aa) || IsZero(all_a)) && (HeldInFp32(bb) || IsZero(all_b)));
  if (!held) return DotTile(x, y, n);
  return Dots{static_cast<double>(ab), static_cast<double>(aa), static_cast<double>(bb)};
}

// Blocks of DotKernel that a multiprocessor has to hold: of 16-bit floats as many as its threads
// allow, else the compiler takes registers for two thirds of them. 0: it is free.
template <typename T>
constexpr unsigned kBlocksAtOnce =
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
    sizeof(T) == 2 ? 2048 / kThreads : 0;
#else
    0;
#endif

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<T>)
    DotKernel(const __grid_constant__ PairTable table, Dots* partials) {
  const int tiles = table.first_tile[table.count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const auto [pair, begin, n] = table.PlaceOf(tile);
    const T *x = reinterpret_cast<const T*>(pair.x) + begin,
            *y = reinterpret_cast<const T*>(pair.y) + begin;
    Dots mine;
    if constexpr (sizeof(T) == 2) {
      mine = DotTileOf16(x, y, n);
    } else {
      mine = DotTile(x, y, n);
    }
    const Dots sum = SumOverBlock(mine);
    if (threadIdx.x == 0) partials[tile] = sum;
  }
}

// Where the tiles of each pair lie; a pair may have none.
struct Tiles {
  static constexpr int kMost = 400;
  int64_t first[kMost + 1];
};

__global__ void __launch_bounds__(kThreads)
    AddTilesKernel(const __grid_constant__ Tiles tiles, const Dots* partials, Dots* sums) {
  const int pair = static_cast<int>(blockIdx.x);
  Dots mine{};
  for (int64_t i = tiles.first[pair] + threadIdx.x; i < tiles.first[pair + 1]; i += kThreads)
    mine = Plus(mine, partials[i]);
  const Dots sum = SumOverBlock(mine);
  if (threadIdx.x == 0) sums[pair] = sum;
}

template <typename T>
Pair CutPair(const Pair& pair, int64_t begin, int64_t count) {
  const int64_t bytes = begin * static_cast<int64_t>(sizeof(T));
  return {pair.x + bytes, pair.y + bytes, pair.out + bytes, count, pair.a, pair.b, pair.by};
}

__global__ void __launch_bounds__(kThreads)
    WeighKernel(Weighing how, const Dots* parts, int64_t rows, int64_t tensors, Coefficients* out) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < tensors) out[t] = CoefficientsOf(parts, rows, tensors, t, how);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) CombineKernel(const __grid_constant__ PairTable table) {
  constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  // fp32 where it can hold the coefficients, as on the host.
  const int tiles = table.first_tile[table.count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const auto [pair, begin, n] = table.PlaceOf(tile);
    const T* x = reinterpret_cast<const T*>(pair.x) + begin;
    const T* y = reinterpret_cast<const T*>(pair.y) + begin;
    T* out = reinterpret_cast<T*>(pair.out) + begin;
    const Coefficients c = pair.by != nullptr ? *pair.by : Coefficients{pair.a, pair.b};
    const bool beyond = (fabs(c.a) > 3.4028234663852886e38 && isfinite(c.a)) ||
                        (fabs(c.b) > 3.4028234663852886e38 && isfinite(c.b));
    const auto combine = [&](T a, T b) {
      if (beyond)
        return Narrow<T>(c.a * static_cast<double>(Widen(a)) +
                         c.b * static_cast<double>(Widen(b)));
      using W = Wide<T>;
      return Narrow<T>(static_cast<W>(c.a) * Widen(a) + static_cast<W>(c.b) * Widen(b));
    };
    const bool aligned =
        AlignedTo(x, kVectorBytes) && AlignedTo(y, kVectorBytes) && AlignedTo(out, kVectorBytes);
    const int vectors = aligned ? n / kWidth : 0;
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
      const auto a = reinterpret_cast<const Vector<T, kWidth>*>(x)[i];
      const auto b = reinterpret_cast<const Vector<T, kWidth>*>(y)[i];
      Vector<T, kWidth> combined;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) combined.at[j] = combine(a.at[j], b.at[j]);
      reinterpret_cast<Vector<T, kWidth>*>(out)[i] = combined;
    }
    for (int i = vectors * kWidth + static_cast<int>(threadIdx.x); i < n; i += kThreads)
      out[i] = combine(x[i], y[i]);
  }
}

}  // namespace

int64_t PartialsFor(std::span<const Pair> pairs) {
  int64_t tiles = 0;
  for (const Pair& pair : pairs) tiles += TilesOf(pair.count);
  return tiles;
}

cudaError_t Dot(DataType dtype, std::span<const Pair> pairs, Dots* partials, Dots* sums,
                cudaStream_t stream) {
  // The tiles of all tables lie one after the other.
  int64_t next = 0;
  const cudaError_t error = WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    return InTables<PairTable>(pairs, CutPair<T>, [&](const PairTable& table) {
      const int tiles = table.first_tile[table.count];
      DotKernel<T><<<BlocksFor(tiles), kThreads, 0, stream>>>(table, partials + next);
      next += tiles;
      return cudaGetLastError();
    });
  });
  if (error != cudaSuccess) return error;
  int64_t first = 0;
  for (size_t done = 0; done < pairs.size(); done += Tiles::kMost) {
    const size_t n = std::min<size_t>(Tiles::kMost, pairs.size() - done);
    Tiles tiles;
    for (size_t i = 0; i < n; ++i) {
      tiles.first[i] = first;
      first += TilesOf(pairs[done + i].count);
    }
    tiles.first[n] = first;
    AddTilesKernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(tiles, partials, sums + done);
    if (const cudaError_t added = cudaGetLastError(); added != cudaSuccess) return added;
  }
  return cudaSuccess;
}

cudaError_t Weigh(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
                  Coefficients* out, cudaStream_t stream) {
  if (tensors == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((tensors + kThreads - 1) / kThreads);
  WeighKernel<<<blocks, kThreads, 0, stream>>>(how, parts, rows, tensors, out);
  return cudaGetLastError();
}

cudaError_t Combine(DataType dtype, std::span<const Pair> pairs, cudaStream_t stream) {
  return WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    return InTables<PairTable>(pairs, CutPair<T>, [&](const PairTable& table) {
      const unsigned blocks = BlocksFor(table.first_tile[table.count]);
      CombineKernel<T><<<blocks, kThreads, 0, stream>>>(table);
      return cudaGetLastError();
    });
  });
}

cudaError_t LoadPairs() {
  if (const cudaError_t error = Load(AddTilesKernel); error != cudaSuccess) return error;
  if (const cudaError_t error = Load(WeighKernel); error != cudaSuccess) return error;
  return ForEach(kFloatTypes, [](DataType dtype) {
    return WithFloat(dtype, [](auto zero) {
      const cudaError_t error = Load(DotKernel<decltype(zero)>);
      return error != cudaSuccess ? error : Load(CombineKernel<decltype(zero)>);
    });
  });
}

}  // namespace horon::cuda
