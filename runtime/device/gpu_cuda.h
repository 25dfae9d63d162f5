// One CUDA device behind gpu.h (gpu_cuda.cc), and its context (context_cuda.cc). Part of the plugin;
// who calls it on which thread is in gpu.h and stream.h.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/cublas_library.h"
#include "runtime/device/entered_context.h"
#include "runtime/device/gpu.h"

namespace horon::cuda {

// Ok, or kUnavailable: "CUDA could not copy memory on GPU 0: out of memory (cudaErrorMemory...)."
Status Check(cudaError_t error, const char* what, int device);

// Begins what a GPU's users share, for the rest of the process.
Status BeginContext(int index);
// Whether this thread is at work with a GPU already.
bool HasContext();

// Makes a device the thread's current one while it lives; its context was begun before. Meanwhile
// what the thread asks of CUDA is none of a graph's business that another thread captures: without
// that an event that is asked for, or memory that is allocated, would break off the capture.
class OnDevice {
 public:
  explicit OnDevice(int index);
  ~OnDevice() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  EnteredContext context_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's own, meanwhile
};

// The library outlives it.
Result<std::shared_ptr<Gpu>> OpenGpu(int index, const CublasLibrary& cublas);

}  // namespace horon::cuda
