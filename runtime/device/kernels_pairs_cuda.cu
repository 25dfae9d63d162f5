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

constexpr int kMostPairs = 400;
using PairTable = Table<Pair, kMostPairs>;
// Larger tiles: what a tile takes beside its elements, the sums over a block, is paid less often.
using DotTable = Table<Pair, kMostPairs, 2 * kTile>;
constexpr int kWarp = 32;
constexpr int kSums = 3;  // of a pair: a.b, a.a, b.b
static_assert(sizeof(Dots) == kSums * sizeof(double));

// The sums over the block, to `out`. A warp adds up one of them, and the others go on to the next
// tile: `turn` is another one in each call, by one.
__device__ void SumOverBlock(const Dots& mine, int turn, Dots* out) {
  __shared__ double of_threads[2][kSums][kThreads];
  double(&here)[kSums][kThreads] = of_threads[turn % 2];
  const auto thread = static_cast<int>(threadIdx.x);
  here[0][thread] = mine.ab;
  here[1][thread] = mine.aa;
  here[2][thread] = mine.bb;
  __syncthreads();  // the call before the last one has been read, too
  const int which = thread / kWarp, lane = thread % kWarp;
  if (which >= kSums) return;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads; i += kWarp) sum += here[which][i + lane];
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (lane == 0) reinterpret_cast<double*>(out)[which] = sum;
}

template <typename T>
constexpr int kWidthOf = kVectorBytes / static_cast<int>(sizeof(T));

// A vector that nobody on this GPU reads again soon.
template <typename T>
__device__ Vector<T, kWidthOf<T>> ReadOnce(const T* vectors, int i) {
  union {
    uint4 bits;
    Vector<T, kWidthOf<T>> vector;
  } read{__ldcs(reinterpret_cast<const uint4*>(vectors) + i)};
  return read.vector;
}

// Calls each(a, b) for this thread's share of a tile, in the order of the elements: vectors of
// them, and single ones.
template <typename T, typename Each>
__device__ void ForEachOfThread(const T* x, const T* y, int n, Each each) {
  constexpr int kLoads = sizeof(T) == 2 ? 4 : 2;  // of x and of y, under way together
  const bool aligned = AlignedTo(x, kVectorBytes) && AlignedTo(y, kVectorBytes);
  const int vectors = aligned ? n / kWidthOf<T> : 0;
  int i = static_cast<int>(threadIdx.x);
  for (; i + (kLoads - 1) * kThreads < vectors; i += kLoads * kThreads) {
    Vector<T, kWidthOf<T>> a[kLoads], b[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      a[load] = ReadOnce(x, i + load * kThreads);
      b[load] = ReadOnce(y, i + load * kThreads);
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) each(a[load], b[load]);
  }
  for (; i < vectors; i += kThreads) each(ReadOnce(x, i), ReadOnce(y, i));
  for (i = vectors * kWidthOf<T> + static_cast<int>(threadIdx.x); i < n; i += kThreads)
    each(Vector<T, 1>{{x[i]}}, Vector<T, 1>{{y[i]}});
}

template <typename T>
__device__ Dots DotTile(const T* x, const T* y, int n) {
  Dots sum{};
  ForEachOfThread(x, y, n, [&]<int kCount>(const Vector<T, kCount>& a, const Vector<T, kCount>& b) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const auto u = static_cast<double>(Widen(a.at[j])), v = static_cast<double>(Widen(b.at[j]));
      sum.ab = fma(u, v, sum.ab);
      sum.aa = fma(u, u, sum.aa);
      sum.bb = fma(v, v, sum.bb);
    }
  });
  return sum;
}

// Whether fp32 held all products under this sum of squares (kernels_host.cc).
__device__ bool HeldInFp32(float squares) { return squares > 0x1p-80f && isfinite(squares); }

// The bits of all elements, one over the other, in both halves of the word or in one.
template <int kCount>
__device__ unsigned BitsOf(const Vector<__nv_bfloat16, kCount>& vector) {
  if constexpr (kCount == 1) {
    return __bfloat16_as_ushort(vector.at[0]);
  } else {
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) bits |= reinterpret_cast<const unsigned*>(vector.at)[j];
    return bits;
  }
}

// Zeros of both signs.
__device__ bool AllZero(unsigned bits) { return (bits & 0x7fff7fff) == 0; }

template <typename T>
__device__ Dots DotTileOf16(const T* x, const T* y, int n) {
  static_assert(DotTable::kElementsOfTile / kThreads <= 64, "as few as on the host");
  constexpr bool kMayLeave = std::is_same_v<T, __nv_bfloat16>;  // fp32's range
  float ab = 0, aa = 0, bb = 0;
  unsigned all_a = 0, all_b = 0;
  ForEachOfThread(x, y, n, [&]<int kCount>(const Vector<T, kCount>& a, const Vector<T, kCount>& b) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float u = Widen(a.at[j]), v = Widen(b.at[j]);
      ab = fmaf(u, v, ab);
      aa = fmaf(u, u, aa);
      bb = fmaf(v, v, bb);
    }
    if constexpr (kMayLeave) {
      all_a |= BitsOf(a);
      all_b |= BitsOf(b);
    }
  });
  const bool held =
      !kMayLeave || ((HeldInFp32(aa) || AllZero(all_a)) && (HeldInFp32(bb) || AllZero(all_b)));
  if (!held) return DotTile(x, y, n);
  return Dots{static_cast<double>(ab), static_cast<double>(aa), static_cast<double>(bb)};
}

// Blocks of DotKernel that a multiprocessor has to hold; 0: the compiler is free. Of fp16 it takes
// registers for four of them, and six are faster; of bf16 what it takes is.
template <typename T>
constexpr unsigned kBlocksAtOnce = std::is_same_v<T, __half> ? 6 : 0;

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<T>)
    DotKernel(const __grid_constant__ DotTable table, Dots* partials) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();  // what adds the tiles may begin, and wait
#endif
  const int tiles = table.first_tile[table.count];
  int turn = 0;
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
    SumOverBlock(mine, turn++, partials + tile);
  }
}

// Where the tiles of each pair lie; a pair may have none.
struct Tiles {
  int64_t first[kMostPairs + 1];
};

__global__ void __launch_bounds__(kThreads)
    AddTilesKernel(const __grid_constant__ Tiles tiles, const Dots* partials, Dots* sums) {
  const int pair = static_cast<int>(blockIdx.x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  Dots mine{};
  for (int64_t i = tiles.first[pair] + threadIdx.x; i < tiles.first[pair + 1]; i += kThreads) {
    mine.ab += partials[i].ab;
    mine.aa += partials[i].aa;
    mine.bb += partials[i].bb;
  }
  SumOverBlock(mine, 0, sums + pair);
}

// Begun as soon as the kernel before it leaves room, where the GPU can (compute capability 9.0).
cudaError_t LaunchAddTiles(const Tiles& tiles, size_t pairs, const Dots* partials, Dots* sums,
                           bool early, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(pairs);
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, AddTilesKernel, tiles, partials, sums);
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
  constexpr int kWidth = kWidthOf<T>;
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
  for (const Pair& pair : pairs) tiles += TilesOf(pair.count, DotTable::kElementsOfTile);
  return tiles;
}

cudaError_t Dot(DataType dtype, std::span<const Pair> pairs, Dots* partials, Dots* sums, bool early,
                cudaStream_t stream) {
  // The tiles of all tables lie one after the other.
  int64_t next = 0;
  const cudaError_t error = WithFloat(dtype, [&](auto zero) {
    using T = decltype(zero);
    return InTables<DotTable>(pairs, CutPair<T>, [&](const DotTable& table) {
      const int tiles = table.first_tile[table.count];
      DotKernel<T><<<BlocksFor(tiles), kThreads, 0, stream>>>(table, partials + next);
      next += tiles;
      return cudaGetLastError();
    });
  });
  if (error != cudaSuccess) return error;
  int64_t first = 0;
  for (size_t done = 0; done < pairs.size(); done += kMostPairs) {
    const size_t n = std::min<size_t>(kMostPairs, pairs.size() - done);
    Tiles tiles;
    for (size_t i = 0; i < n; ++i) {
      tiles.first[i] = first;
      first += TilesOf(pairs[done + i].count, DotTable::kElementsOfTile);
    }
    tiles.first[n] = first;
    const cudaError_t added = LaunchAddTiles(tiles, n, partials, sums + done, early, stream);
    if (added != cudaSuccess) return added;
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

bool AddsTilesEarly() {
  cudaFuncAttributes of{};
  return cudaFuncGetAttributes(&of, AddTilesKernel) == cudaSuccess && of.ptxVersion >= 90;
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
