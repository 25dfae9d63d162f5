// Kernels that are not Horon's: what it is measured beside. In loops.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace horon::bench {

// Reads `bytes` at an address of 16 bytes' alignment, and does nothing else. `never` is written to
// where all of it is 1: so the compiler has to read.
cudaError_t ReadAll(const std::byte* from, int64_t bytes, int* never, cudaStream_t stream);

// Writes `value` where the host looks: pinned memory.
cudaError_t Stamp(int* seen, int value, cudaStream_t stream);

}  // namespace horon::bench
