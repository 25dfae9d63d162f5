// The launches of the CUDA kernels, as stream.h promises them. Plain enough for nvcc; included by
// gpu_cuda.cc and the .cu files alone. Each enqueues on `stream` and gives CUDA's answer; a batch
// that is longer than a table of kernel arguments is cut into several launches. The Load functions
// come first: a launch then loads nothing, and so never waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "runtime/device/batch.h"

namespace horon::cuda {

// kernels_move_cuda.cu
cudaError_t Move(DataType from, DataType to, double scale, std::span<const Piece> pieces,
                 cudaStream_t stream);
cudaError_t LoadMoves();
// kernels_reduce_cuda.cu
cudaError_t Reduce(ReduceKind kind, DataType dtype, double scale,
                   std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                   cudaStream_t stream);
cudaError_t LoadReductions();  // and mixing
// kernels_pairs_cuda.cu. `partials` is device memory for PartialsFor(pairs) Dots. `early`: the
// kernel that adds up may begin before the other one has ended, since it waits for it by itself.
int64_t PartialsFor(std::span<const Pair> pairs);
cudaError_t Dot(DataType dtype, std::span<const Pair> pairs, Dots* partials, Dots* sums, bool early,
                cudaStream_t stream);
cudaError_t Weigh(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
                  Coefficients* out, cudaStream_t stream);
cudaError_t Combine(DataType dtype, std::span<const Pair> pairs, cudaStream_t stream);
cudaError_t Mix(DataType dtype, std::span<const double> weights,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                cudaStream_t stream);
// Whether it does on the current GPU: the code that is loaded there, which may be compiled from
// that of an older one, has to be of compute capability 9.0.
bool AddsTilesEarly();
cudaError_t LoadPairs();

}  // namespace horon::cuda
