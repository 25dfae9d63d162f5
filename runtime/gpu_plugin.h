// GpuPlugin: libhoron_cuda.so, opened only where a tensor of a GPU is submitted, or somebody asks
// what this machine has (horonrun --check-build).
#pragma once

#include "runtime/base/config.h"
#include "runtime/base/mutex.h"
#include "runtime/transport/gpu_driver.h"

namespace horon {

// One per process. Any thread.
class GpuPlugin {
 public:
  // Whether libhoron_cuda.so lies beside libhoron. Opens nothing.
  static bool built();
  // The process's driver; kUnsupported with the reason where there is none. Opens libcuda, the
  // plugin, NCCL and cuBLAS the first time.
  Result<GpuDriver*> Open(const Config& config);

 private:
  Mutex mutex_;
  GpuDriver* driver_ HORON_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace horon
