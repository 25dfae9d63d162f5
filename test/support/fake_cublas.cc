// A libcublas on host memory, with what Horon calls: results are those of plain loops in the type
// that is asked for, and each call that cuBLAS would refuse is refused. Opened by unit tests.
#include <cstdint>

#include "runtime/base/dtype.h"
#include "runtime/device/cublas_library.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace horon {

struct CublasHandle {
  void* stream = nullptr;
  CublasPointers pointers = kCublasHostPointers;
};

namespace {

constexpr auto kInvalid = static_cast<CublasAnswer>(7),
               kNotSupported = static_cast<CublasAnswer>(15);

double At(const void* data, CublasType type, int64_t i) {
  switch (type) {
    case kCublasF16:
      return static_cast<float>(static_cast<const Float16*>(data)[i]);
    case kCublasBF16:
      return static_cast<float>(static_cast<const BFloat16*>(data)[i]);
    case kCublasF64:
      return static_cast<const double*>(data)[i];
    case kCublasF32:
      return static_cast<const float*>(data)[i];
  }
  return 0;
}

void Put(void* data, CublasType type, int64_t i, double value) {
  switch (type) {
    case kCublasF16:
      static_cast<Float16*>(data)[i] = Float16(static_cast<float>(value));
      return;
    case kCublasBF16:
      static_cast<BFloat16*>(data)[i] = BFloat16(static_cast<float>(value));
      return;
    case kCublasF64:
      static_cast<double*>(data)[i] = value;
      return;
    case kCublasF32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

// Sums in the computing type.
double Plus(double sum, double next, bool in_double) {
  return in_double ? sum + next
                   : static_cast<float>(static_cast<float>(sum) + static_cast<float>(next));
}

bool Computes(CublasType type, CublasType computed) {
  return computed == (type == kCublasF64 ? kCublasF64 : kCublasF32);
}

}  // namespace
}  // namespace horon

using namespace horon;  // NOLINT: a library of C functions

FAKE CublasAnswer cublasGetProperty(int kind, int* value) {
  constexpr int kVersion[] = {13, 1, 1};
  *value = kVersion[kind];
  return kCublasSuccess;
}
FAKE CublasAnswer cublasCreate_v2(CublasHandle** handle) {
  *handle = new CublasHandle;
  return kCublasSuccess;
}
FAKE CublasAnswer cublasDestroy_v2(CublasHandle* handle) {
  delete handle;
  return kCublasSuccess;
}
FAKE CublasAnswer cublasSetStream_v2(CublasHandle* handle, void* stream) {
  handle->stream = stream;
  return kCublasSuccess;
}
FAKE CublasAnswer cublasSetPointerMode_v2(CublasHandle* handle, CublasPointers pointers) {
  handle->pointers = pointers;
  return kCublasSuccess;
}
FAKE const char* cublasGetStatusString(CublasAnswer answer) {
  return answer == kInvalid ? "an argument is wrong" : "it is not supported";
}

FAKE CublasAnswer cublasDotEx_64(CublasHandle* handle, int64_t n, const void* x, CublasType x_type,
                                 int64_t, const void* y, CublasType y_type, int64_t, void* result,
                                 CublasType result_type, CublasType computed) {
  if (handle->pointers != kCublasDevicePointers) return kInvalid;  // it would wait for the device
  if (x_type != y_type || result_type != x_type || !Computes(x_type, computed))
    return kNotSupported;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum = Plus(sum, At(x, x_type, i) * At(y, y_type, i), computed == kCublasF64);
  Put(result, result_type, 0, sum);
  return kCublasSuccess;
}

FAKE CublasAnswer cublasScalEx_64(CublasHandle*, int64_t n, const void* alpha,
                                  CublasType alpha_type, void* x, CublasType x_type, int64_t,
                                  CublasType computed) {
  if (!Computes(x_type, computed) || alpha_type != computed) return kNotSupported;
  for (int64_t i = 0; i < n; ++i) Put(x, x_type, i, At(alpha, alpha_type, 0) * At(x, x_type, i));
  return kCublasSuccess;
}

FAKE CublasAnswer cublasAxpyEx_64(CublasHandle*, int64_t n, const void* alpha,
                                  CublasType alpha_type, const void* x, CublasType x_type, int64_t,
                                  void* y, CublasType y_type, int64_t, CublasType computed) {
  if (x_type != y_type || !Computes(x_type, computed) || alpha_type != computed)
    return kNotSupported;
  for (int64_t i = 0; i < n; ++i)
    Put(y, y_type, i, At(alpha, alpha_type, 0) * At(x, x_type, i) + At(y, y_type, i));
  return kCublasSuccess;
}

FAKE CublasAnswer cublasGemmEx_64(CublasHandle* handle, CublasTransposed a_is,
                                  CublasTransposed b_is, int64_t m, int64_t n, int64_t k,
                                  const void* alpha, const void* a, CublasType a_type,
                                  int64_t a_column, const void* b, CublasType b_type,
                                  int64_t b_column, const void* beta, void* c, CublasType c_type,
                                  int64_t c_column, CublasCompute computed, int algorithm) {
  const bool in_double = computed == kCublasComputeF64;
  const CublasType wide = in_double ? kCublasF64 : kCublasF32;
  if (a_column < (a_is == kCublasTransposed ? k : m) || b_column < k || c_column < m)
    return kInvalid;
  if (handle->pointers != kCublasHostPointers || algorithm != kCublasDefaultAlgorithm)
    return kInvalid;
  if (a_type != b_type || !Computes(a_type, wide) || b_is != kCublasAsIs) return kNotSupported;
  if (c_type != a_type && c_type != kCublasF32) return kNotSupported;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        const int64_t in_a = a_is == kCublasTransposed ? row * a_column + i : i * a_column + row;
        sum = Plus(sum, At(a, a_type, in_a) * At(b, b_type, column * b_column + i), in_double);
      }
      if (At(beta, wide, 0) != 0) return kNotSupported;
      Put(c, c_type, column * c_column + row, At(alpha, wide, 0) * sum);
    }
  }
  return kCublasSuccess;
}
