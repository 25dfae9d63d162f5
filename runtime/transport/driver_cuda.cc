// The CUDA plugin's door: what gpu_driver.h promises.
#include <cuda_runtime_api.h>

#include "runtime/device/gpu_cuda.h"
#include "runtime/transport/gpu_driver.h"
#include "runtime/transport/nccl.h"

namespace horon {
namespace {

std::string Dotted(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::shared_ptr<void> Enter(int device) { return std::make_shared<cuda::OnDevice>(device); }

class CudaDriver final : public GpuDriver {
 public:
  CudaDriver(int devices, const GpuLibraryPaths& paths)
      : devices_(devices), nccl_(OpenNccl(paths)), cublas_(OpenCublas(paths)) {
    if (nccl_.ok()) network_ = MakeNcclNetwork(nccl_, Enter);
  }
  int devices() const override { return devices_; }
  std::string version() const override {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return "driver for CUDA " + Dotted(driver) + ", built with CUDA " + Dotted(runtime);
  }
  const FoundLibrary& nccl() const override { return nccl_.found; }
  const FoundLibrary& cublas() const override { return cublas_.found; }
  Result<std::shared_ptr<Gpu>> Open(int index) override { return cuda::OpenGpu(index, cublas_); }
  GpuNetwork* network() override { return network_.get(); }

 private:
  int devices_;
  NcclLibrary nccl_;
  CublasLibrary cublas_;
  std::unique_ptr<GpuNetwork> network_;
};

}  // namespace
}  // namespace horon

#define HORON_PLUGIN_API __attribute__((visibility("default")))

extern "C" HORON_PLUGIN_API int horon_cuda_version() { return horon::kCudaPluginVersion; }

// Leaked: tensors may outlive everything.
extern "C" HORON_PLUGIN_API horon::GpuDriver* horon_cuda_open(horon::Status* status,
                                                              const horon::GpuLibraryPaths* paths) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    *status = horon::Status::Unsupported(
        "no GPU can be used: " +
        std::string(found != cudaSuccess ? cudaGetErrorString(found) : "CUDA finds none") +
        " (look at nvidia-smi, and at CUDA_VISIBLE_DEVICES)");
    return nullptr;
  }
  return new horon::CudaDriver(devices, *paths);
}
