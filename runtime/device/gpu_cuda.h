// One CUDA device behind gpu.h. Part of the plugin; who calls it on which thread is in gpu.h and
// stream.h.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/cublas_library.h"
#include "runtime/device/gpu.h"

namespace horon::cuda {

// Ok, or kUnavailable: "CUDA could not copy memory on GPU 0: out of memory (cudaErrorMemory...)."
Status Check(cudaError_t error, const char* what, int device);

// Makes a device the thread's current one while it lives. Meanwhile what the thread asks of CUDA is
// none of a graph's business that another thread captures: without that an event that is asked for,
// or memory that is allocated, would break off the capture.
class OnDevice {
 public:
  explicit OnDevice(int index) {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = index;
    if (before_ != index) cudaSetDevice(index);
    changed_ = before_ != index;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's own, meanwhile
  int before_ = 0;
  bool changed_ = false;
};

// The library outlives it.
Result<std::shared_ptr<Gpu>> OpenGpu(int index, const CublasLibrary& cublas);

}  // namespace horon::cuda
