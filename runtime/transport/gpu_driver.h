// The face of the CUDA plugin (libhoron_cuda.so): what the machine has, and the doors to it.
//
// gpu_plugin.cc opens the plugin when the first tensor of a GPU is submitted, so that neither
// `import horon` nor a job on CPUs touches a driver. The plugin has the CUDA runtime in itself and
// opens NCCL and cuBLAS, which it calls through declarations of its own, at run time. Both sides
// come from one build (kCudaPluginVersion guards against a mixture).
#pragma once

#include <memory>
#include <string>

#include "runtime/device/gpu.h"
#include "runtime/device/gpu_libraries.h"
#include "runtime/transport/gpu_group.h"

namespace horon {

// One more whenever what is declared here or in what this includes changes.
inline constexpr int kCudaPluginVersion = 6;

// One per process; lives to its end. Any thread.
class GpuDriver {
 public:
  virtual ~GpuDriver() = default;
  virtual int devices() const = 0;
  virtual std::string version() const = 0;  // "driver 13.0, CUDA runtime 13.0"
  virtual const FoundLibrary& nccl() const = 0;
  virtual const FoundLibrary& cublas() const = 0;
  virtual Result<std::shared_ptr<Gpu>> Open(int index) = 0;
  virtual GpuNetwork* network() = 0;  // null where NCCL was not found: nccl() says why
};

// The plugin's C entry points, found by dlsym.
extern "C" {
// kCudaPluginVersion of the plugin.
using HoronCudaVersionFn = int();
// The process's driver; null and *status where there is none.
using HoronCudaOpenFn = GpuDriver*(Status* status, const GpuLibraryPaths* paths);
}
inline constexpr const char* kCudaVersionSymbol = "horon_cuda_version";
inline constexpr const char* kCudaOpenSymbol = "horon_cuda_open";

}  // namespace horon
