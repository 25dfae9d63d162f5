// What the host's half of the kernels makes of CUDA's runtime, where there is no GPU: a runtime
// that is made up here keeps which kernels nvcc has registered, and what is loaded or launched must
// be one of those. nvcc has been seen to name another kernel on the host than on the device.
#include <cuda_runtime_api.h>

#include <set>
#include <vector>

#include "runtime/device/kernels_cuda.h"
#include "test/support/catch.h"
#include "test/support/reference.h"

namespace {

struct FakeRuntime {
  std::set<const void*> registered, loaded, launched;
  int unknown = 0;  // loaded or launched, and not registered
  dim3 blocks, threads;
};
FakeRuntime& TheRuntime() {
  static FakeRuntime runtime;  // the kernels register before main
  return runtime;
}
cudaError_t Use(const void* kernel, std::set<const void*>& into) {
  if (!TheRuntime().registered.contains(kernel)) {
    ++TheRuntime().unknown;
    return cudaErrorInvalidDeviceFunction;
  }
  into.insert(kernel);
  return cudaSuccess;
}

}  // namespace

// As in the header that nvcc includes, crt/host_runtime.h.
extern "C" {
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char*, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  TheRuntime().registered.insert(kernel);
}
unsigned __cudaPushCallConfiguration(dim3 blocks, dim3 threads, size_t, cudaStream_t) {
  TheRuntime().blocks = blocks;
  TheRuntime().threads = threads;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared, void* stream) {
  *blocks = TheRuntime().blocks;
  *threads = TheRuntime().threads;
  *shared = 0;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* of) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(of));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return Use(kernel, TheRuntime().launched);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return Use(kernel, TheRuntime().launched);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return Use(kernel, TheRuntime().launched);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  return Use(kernel, TheRuntime().loaded);
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
}

namespace horon::cuda {

TEST_CASE("what is loaded or launched on a GPU is what nvcc has registered") {
  FakeRuntime& runtime = TheRuntime();
  REQUIRE_FALSE(runtime.registered.empty());
  CHECK(LoadMoves() == cudaSuccess);
  CHECK(LoadReductions() == cudaSuccess);
  CHECK(LoadPairs() == cudaSuccess);
  CHECK(runtime.unknown == 0);
  CHECK(runtime.loaded == runtime.registered);  // so that no launch loads anything

  std::byte bytes[64] = {};
  const std::byte* const inputs[] = {bytes, bytes};
  const double weights[] = {0.5, 0.5};
  const Piece piece{bytes, bytes, 4};
  const std::vector<Piece> pieces(100, piece);
  const Pair pair{bytes, bytes, bytes, 4};
  Dots dots[4];
  Coefficients out;
  const auto took = [](cudaError_t error) { return error == cudaSuccess; };
  for (const DataType dtype : test::kAllTypes) {
    for (const double scale : {1.0, 2.0}) {
      CHECK(took(Move(dtype, dtype, scale, {&piece, 1}, nullptr)));
      CHECK(took(Move(dtype, dtype, scale, pieces, nullptr)));
    }
    for (const ReduceKind kind :
         {ReduceKind::kSum, ReduceKind::kProduct, ReduceKind::kMax, ReduceKind::kMin}) {
      CHECK(took(Reduce(kind, dtype, 1, {inputs, 2}, bytes, 4, nullptr)));
    }
    if (!IsFloat(dtype)) continue;
    CHECK(took(Mix(dtype, weights, inputs, bytes, 4, nullptr)));
    CHECK(took(Dot(dtype, {&pair, 1}, dots, dots, true, nullptr)));
    CHECK(took(Combine(dtype, {&pair, 1}, nullptr)));
    for (const DataType to : test::kFloats) {
      CHECK(took(Move(dtype, to, 1, {&piece, 1}, nullptr)));
      CHECK(took(Move(dtype, to, 1, pieces, nullptr)));
    }
  }
  CHECK(took(Weigh({}, dots, 1, 1, &out, nullptr)));
  CHECK(runtime.unknown == 0);
  CHECK(runtime.launched == runtime.registered);
}

}  // namespace horon::cuda
