#include "runtime/gpu_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include "runtime/plugin_library.h"

namespace horon {
namespace {

constexpr const char* kName = "libhoron_cuda.so";

}  // namespace

bool GpuPlugin::built() { return access(PluginPath(kName).c_str(), R_OK) == 0; }

Result<GpuDriver*> GpuPlugin::Open(const Config& config) {
  MutexLock lock(mutex_);
  if (driver_ != nullptr) return driver_;
  if (!built()) {
    return Status::Unsupported(
        "this build of Horon has no CUDA support: build it where nvcc is, with HORON_WITH_CUDA=on");
  }
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return Status::Unsupported(
        "this machine has no NVIDIA driver (libcuda.so.1 does not open), so no GPU can be used");
  }
  HORON_ASSIGN(const PluginLibrary plugin,
               PluginLibrary::Open(kName, kCudaVersionSymbol, kCudaPluginVersion, "CUDA",
                                   "Install Horon again on this machine"));
  const GpuLibraryPaths paths{config.nccl_lib, config.cublas_lib, config.python_prefix};
  Status status;
  driver_ = plugin.Symbol<HoronCudaOpenFn>(kCudaOpenSymbol)(&status, &paths);
  if (driver_ == nullptr) return status;
  return driver_;
}

}  // namespace horon
