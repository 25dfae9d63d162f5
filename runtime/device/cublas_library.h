// cuBLAS as the plugin calls it: the few functions it needs, declared here and found at run time,
// so that no build needs cuBLAS and one build works with every version from kLeastCublas on.
//
// Names, numbers and layouts are cuBLAS's. Part of the CUDA plugin; opened once per process.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/status.h"
#include "runtime/device/gpu_libraries.h"

namespace horon {

inline constexpr int kLeastCublas = 120000;  // 12.0: counts of 64 bits

struct CublasHandle;  // opaque
enum CublasAnswer : int { kCublasSuccess = 0 };
enum CublasPointers : int { kCublasHostPointers = 0, kCublasDevicePointers = 1 };
enum CublasTransposed : int { kCublasAsIs = 0, kCublasTransposed = 1 };
// cudaDataType
enum CublasType : int { kCublasF32 = 0, kCublasF64 = 1, kCublasF16 = 2, kCublasBF16 = 14 };
// cublasComputeType_t
enum CublasCompute : int { kCublasComputeF32 = 68, kCublasComputeF64 = 70 };
inline constexpr int kCublasDefaultAlgorithm = -1;

// Streams are cudaStream_t.
struct CublasLibrary {
  FoundLibrary found;
  CublasAnswer (*GetProperty)(int kind, int* value) = nullptr;  // 0 major, 1 minor, 2 patch
  CublasAnswer (*Create)(CublasHandle** handle) = nullptr;
  CublasAnswer (*Destroy)(CublasHandle* handle) = nullptr;
  CublasAnswer (*SetStream)(CublasHandle* handle, void* stream) = nullptr;
  CublasAnswer (*SetPointerMode)(CublasHandle* handle, CublasPointers pointers) = nullptr;
  const char* (*GetStatusString)(CublasAnswer answer) = nullptr;
  CublasAnswer (*DotEx)(CublasHandle* handle, int64_t n, const void* x, CublasType x_type,
                        int64_t x_step, const void* y, CublasType y_type, int64_t y_step,
                        void* result, CublasType result_type, CublasType computed) = nullptr;
  CublasAnswer (*ScalEx)(CublasHandle* handle, int64_t n, const void* alpha, CublasType alpha_type,
                         void* x, CublasType x_type, int64_t x_step, CublasType computed) = nullptr;
  CublasAnswer (*AxpyEx)(CublasHandle* handle, int64_t n, const void* alpha, CublasType alpha_type,
                         const void* x, CublasType x_type, int64_t x_step, void* y,
                         CublasType y_type, int64_t y_step, CublasType computed) = nullptr;
  CublasAnswer (*GemmEx)(CublasHandle* handle, CublasTransposed a_is, CublasTransposed b_is,
                         int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
                         CublasType a_type, int64_t a_column, const void* b, CublasType b_type,
                         int64_t b_column, const void* beta, void* c, CublasType c_type,
                         int64_t c_column, CublasCompute computed, int algorithm) = nullptr;

  bool ok() const { return found.version != 0; }
  // Ok, or kUnavailable: "cuBLAS could not multiply vectors: the library was not initialized".
  Status Check(CublasAnswer answer, const std::string& what) const;
};

// Never fails: what is missing, and what to install, is in `found`.
CublasLibrary OpenCublas(const GpuLibraryPaths& paths);

}  // namespace horon
