// Adasum's dots and combinations by cuBLAS, one call for each tensor, and dense products: behind
// stream.h where HORON_ADASUM_KERNEL=cublas. Part of the CUDA plugin, but without CUDA in it: what
// else it does on the device it does through its stream.
//
// The 16-bit floats and fp32 are added in fp32. cublasDotEx gives a dot of 16-bit floats in their
// own type, which a norm soon exceeds: these are products of a row and a column (cublasGemmEx)
// instead, which come out in fp32. Holder of the baton.
#pragma once

#include <memory>
#include <span>

#include "runtime/device/cublas_library.h"
#include "runtime/device/stream.h"

namespace horon {

class CublasPairs {
 public:
  // The library and the stream outlive it. The device is the thread's current one, now and in the
  // calls below.
  static Result<std::unique_ptr<CublasPairs>> Make(const CublasLibrary& cublas, Stream& stream);
  ~CublasPairs();
  CublasPairs(const CublasPairs&) = delete;
  CublasPairs& operator=(const CublasPairs&) = delete;

  // Memory of the device that Dot and Combine need beside their arguments.
  static int64_t RoomFor(std::span<const Pair> pairs);
  Status Dot(DataType dtype, std::span<const Pair> pairs, std::byte* room, Dots* sums);
  Status Combine(DataType dtype, std::span<const Pair> pairs, std::byte* room);
  Status Multiply(const MatrixProduct& product);

 private:
  CublasPairs(const CublasLibrary& cublas, CublasHandle* handle, Stream& stream)
      : cublas_(cublas), handle_(handle), stream_(stream) {}
  Status Point(CublasPointers pointers);
  Status DotOne(DataType dtype, const std::byte* x, const std::byte* y, int64_t count,
                std::byte* result);
  // out = a*x + b*y; a and b are of the type that is added in.
  Status CombineOne(DataType dtype, const Pair& pair, const void* a, const void* b);

  const CublasLibrary& cublas_;
  CublasHandle* handle_;
  Stream& stream_;
};

}  // namespace horon
