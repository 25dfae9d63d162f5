// The contexts that CUDA's users of a process share, one of each GPU, and which of them a thread has.
#include <dlfcn.h>

#include <atomic>
#include <vector>

#include "runtime/device/gpu_cuda.h"

namespace horon::cuda {
namespace {

// The driver is open, for all (gpu_plugin.cc), so its functions are found by name.
template <typename Fn>
Fn* OfDriver(const char* name) {
  return reinterpret_cast<Fn*>(dlsym(RTLD_DEFAULT, name));
}

const ContextCalls& Contexts() {
  static const ContextCalls calls = {OfDriver<int(void**)>("cuCtxGetCurrent"),
                                     OfDriver<int(void*)>("cuCtxSetCurrent")};
  return calls;
}

// Null until BeginContext.
std::atomic<void*>& ContextOf(int index) {
  static std::vector<std::atomic<void*>> contexts([] {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess ? static_cast<size_t>(devices) : size_t{0};
  }());
  return contexts.at(static_cast<size_t>(index));
}

}  // namespace

Status Check(cudaError_t error, const char* what, int device) {
  if (error == cudaSuccess) return Status::Ok();
  cudaGetLastError();  // so that the framework does not find it
  return Status::Unavailable("CUDA could not " + std::string(what) + " on GPU " +
                             std::to_string(device) + ": " + cudaGetErrorString(error) + " (" +
                             cudaGetErrorName(error) + ")");
}

Status BeginContext(int index) {
  static auto* const device_of = OfDriver<int(int*, int)>("cuDeviceGet");
  static auto* const retain = OfDriver<int(void**, int)>("cuDevicePrimaryCtxRetain");
  if (ContextOf(index).load() != nullptr) return Status::Ok();
  // The runtime begins the same one, and says why not.
  HORON_TRY(Check(cudaInitDevice(index, 0, 0), "be started", index));
  void* context = nullptr;
  int device = 0;
  if (device_of(&device, index) != 0 || retain(&context, device) != 0)
    return Status::Unavailable("CUDA has no context of GPU " + std::to_string(index));
  ContextOf(index).store(context);
  return Status::Ok();
}

bool HasContext() {
  void* context = nullptr;
  return Contexts().GetCurrent(&context) == 0 && context != nullptr;
}

OnDevice::OnDevice(int index) : context_(Contexts(), ContextOf(index).load()) {
  cudaThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace horon::cuda
