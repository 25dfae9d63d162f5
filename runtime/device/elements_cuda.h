// What the CUDA kernels share: element types, vectors of 16 bytes, tables of segments and the way
// from a block of threads to its tile. Included by the .cu files alone.
//
// A batch is cut into tiles of kTile elements, whatever segment they belong to; a block of threads
// takes tile after tile. The bits of a result depend on neither the number of blocks nor the GPU:
// the files are compiled without contraction of products and sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "runtime/base/dtype.h"

namespace horon::cuda {

constexpr int kThreads = 256;
constexpr int kTile = 4096;       // elements
constexpr int kVectorBytes = 16;  // what one thread moves at once

// fp16 and bf16 are computed in fp32.
template <typename T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<__half> {
  using Type = float;
};
template <>
struct WideOf<__nv_bfloat16> {
  using Type = float;
};
template <typename T>
using Wide = typename WideOf<T>::Type;

__device__ inline float Widen(__half x) { return __half2float(x); }
__device__ inline float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ T Widen(T x) {
  return x;
}
template <typename T, typename W>
__device__ T Narrow(W x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <typename T>  // a constant: the function that it comes from is the host's alone
constexpr double kLargest = static_cast<double>(std::numeric_limits<T>::max());

// scale * x as kernels.h says. The conversion of a double saturates; narrower integers are bounded.
template <typename W>
__device__ W Scaled(W x, double scale) {
  if constexpr (std::is_floating_point_v<W>) {
    return static_cast<W>(scale) * x;
  } else {
    const double exact = static_cast<double>(x) * scale;
    const double value = fabs(exact) < 0x1p50 ? exact * (1 + 0x1p-50) : exact;
    if (value != value) return W{0};
    constexpr double most = kLargest<W>;
    const double least = std::is_unsigned_v<W> ? 0.0 : -most - 1.0;
    const double bounded = value < least ? least : value > most ? most : value;
    return static_cast<W>(__double2ll_rz(bounded));
  }
}

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];
};

__host__ __device__ inline bool AlignedTo(const void* pointer, unsigned bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

inline int64_t TilesOf(int64_t count, int64_t of = kTile) { return (count + of - 1) / of; }

// Segments by value, in a kernel's arguments, and the first tile of each; tiles of kElements.
template <typename Segment, int kMost, int kElements = kTile>
struct Table {
  Segment segments[kMost];
  int first_tile[kMost + 1];
  int count;

  static constexpr int64_t kElementsOfTile = kElements;

  __device__ int SegmentOf(int tile) const {
    int low = 0, high = count;  // first_tile[low] <= tile < first_tile[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_tile[middle] <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Where a tile lies: its segment, the first of its elements in that, and how many they are.
  struct Place {
    const Segment& segment;
    int64_t begin;
    int count;
  };
  __device__ Place PlaceOf(int tile) const {
    const int index = SegmentOf(tile);
    const int64_t begin = static_cast<int64_t>(tile - first_tile[index]) * kElements;
    const int64_t left = segments[index].count - begin;
    return {segments[index], begin, static_cast<int>(left < kElements ? left : kElements)};
  }
};

// Calls launch(table, blocks) for as many tables as the batch needs. Segments of more than
// kMostTiles tiles are cut.
template <typename TableType, typename Segment, typename Cut, typename Launch>
cudaError_t InTables(std::span<const Segment> batch, Cut cut, Launch launch) {
  constexpr int kMost = static_cast<int>(std::size(TableType{}.segments));
  constexpr int64_t kOfTile = TableType::kElementsOfTile;
  constexpr int64_t kMostTiles = 1 << 20, kMostElements = kMostTiles * kOfTile;
  TableType table;
  table.count = 0;
  table.first_tile[0] = 0;
  const auto flush = [&] {
    const cudaError_t error = table.count > 0 ? launch(table) : cudaSuccess;
    table.count = 0;
    return error;
  };
  for (const Segment& segment : batch) {
    for (int64_t begin = 0; begin < segment.count; begin += kMostElements) {
      const int64_t count = std::min(segment.count - begin, kMostElements);
      const int64_t tiles = table.first_tile[table.count] + TilesOf(count, kOfTile);
      if (table.count == kMost || tiles > kMostTiles) {
        if (const cudaError_t error = flush(); error != cudaSuccess) return error;
      }
      table.segments[table.count] = cut(segment, begin, count);
      table.first_tile[table.count + 1] =
          table.first_tile[table.count] + static_cast<int>(TilesOf(count, kOfTile));
      ++table.count;
    }
  }
  return flush();
}

// Enough blocks to keep every multiprocessor of today's GPUs busy, and no more than there are
// tiles.
inline unsigned BlocksFor(int64_t tiles) {
  constexpr int64_t kMostBlocks = 2048;
  return static_cast<unsigned>(std::clamp<int64_t>(tiles, 1, kMostBlocks));
}

// Has CUDA load a kernel, which it does with the first launch otherwise: while a collective of
// another library runs, say, and then it may wait for that, whose peers may wait for this rank.
template <typename Kernel>
cudaError_t Load(Kernel* kernel) {
  cudaFuncAttributes unused;
  return cudaFuncGetAttributes(&unused, kernel);
}

// Calls f for each of the dtypes until it fails.
template <typename F>
cudaError_t ForEach(std::span<const DataType> dtypes, F f) {
  for (const DataType dtype : dtypes) {
    if (const cudaError_t error = f(dtype); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
constexpr DataType kFloatTypes[] = {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32,
                                    DataType::kFloat64};
constexpr DataType kElementTypes[] = {DataType::kUInt8,   DataType::kInt8,     DataType::kInt16,
                                      DataType::kInt32,   DataType::kInt64,    DataType::kBool,
                                      DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32,
                                      DataType::kFloat64};

// Calls f with a value of the device's type of a floating dtype.
template <typename F>
cudaError_t WithFloat(DataType dtype, F f) {
  switch (dtype) {
    case DataType::kFloat16:
      return f(__half{});
    case DataType::kBFloat16:
      return f(__nv_bfloat16{});
    case DataType::kFloat32:
      return f(float{});
    case DataType::kFloat64:
      return f(double{});
    default:
      return cudaErrorInvalidValue;
  }
}

// The same of any dtype; bool is a byte.
template <typename F>
cudaError_t WithElement(DataType dtype, F f) {
  switch (dtype) {
    case DataType::kUInt8:
    case DataType::kBool:
      return f(uint8_t{});
    case DataType::kInt8:
      return f(int8_t{});
    case DataType::kInt16:
      return f(int16_t{});
    case DataType::kInt32:
      return f(int32_t{});
    case DataType::kInt64:
      return f(int64_t{});
    default:
      return WithFloat(dtype, f);
  }
}

}  // namespace horon::cuda
