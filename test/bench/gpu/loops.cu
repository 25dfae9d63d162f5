#include <cstddef>

#include "test/bench/gpu/loops.h"

namespace horon::bench {
namespace {

constexpr int kThreads = 256, kBlocks = 2048;

__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint4* from, int64_t count, int* never) {
  constexpr int kLoads = 4;  // under way together
  constexpr int64_t kStride = static_cast<int64_t>(kThreads) * kBlocks;
  unsigned all = ~0u;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kLoads - 1) * kStride < count; i += kLoads * kStride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) loaded[j] = from[i + j * kStride];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) all &= loaded[j].x & loaded[j].y & loaded[j].z & loaded[j].w;
  }
  for (; i < count; i += kStride) all &= from[i].x & from[i].y & from[i].z & from[i].w;
  if (all == ~0u) *never = 1;
}

__global__ void StampKernel(volatile int* seen, int value) { *seen = value; }

}  // namespace

cudaError_t ReadAll(const std::byte* from, int64_t bytes, int* never, cudaStream_t stream) {
  ReadKernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(from), bytes / 16,
                                               never);
  return cudaGetLastError();
}

cudaError_t Stamp(int* seen, int value, cudaStream_t stream) {
  StampKernel<<<1, 1, 0, stream>>>(seen, value);
  return cudaGetLastError();
}

}  // namespace horon::bench
