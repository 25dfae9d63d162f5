// Gpus: the GPU that this rank works with. It is opened when its first tensor is submitted, not
// before, and the rank stays with it: one process, one GPU.
//
// Of: any thread (user threads submit). The rest: holder of the baton, once Of has succeeded.
#pragma once

#include <functional>
#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/transport/gpu_driver.h"

namespace horon {

class Gpus {
 public:
  // The process's driver, or why there is none; asked once at most.
  using Find = std::function<Result<GpuDriver*>()>;
  explicit Gpus(Find find, bool nccl = true, PairKernels pairs = PairKernels::kFused)
      : find_(std::move(find)), nccl_(nccl), pairs_(pairs) {}

  // kUnsupported with the reason where there is no such GPU, or no cuBLAS that is wanted;
  // kInvalidArgument for a second GPU.
  Result<std::shared_ptr<Gpu>> Of(Device device);
  std::shared_ptr<Gpu> gpu() const;  // null before
  GpuNetwork* network() const;       // null where there is none, or none is wanted
  PairKernels pairs() const { return pairs_; }

 private:
  Find find_;
  const bool nccl_;
  const PairKernels pairs_;
  mutable Mutex mutex_;
  std::shared_ptr<Gpu> gpu_ HORON_GUARDED_BY(mutex_);
  GpuDriver* driver_ HORON_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace horon
