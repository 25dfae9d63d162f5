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

// What the user has chosen.
struct GpuChoices {
  bool nccl = true, nccl_needed = false;  // whether to use it; whether nothing else will do
  PairKernels pairs = PairKernels::kFused;
  GpuGroupOptions groups = {};
};

class Gpus {
 public:
  // The process's driver, or why there is none; asked once at most.
  using Find = std::function<Result<GpuDriver*>()>;
  explicit Gpus(Find find, const GpuChoices& choices = {})
      : find_(std::move(find)), choices_(choices) {}

  // kUnsupported with the reason where there is no such GPU, or no NCCL or cuBLAS that is needed;
  // kInvalidArgument for a second GPU.
  Result<std::shared_ptr<Gpu>> Of(Device device);
  std::shared_ptr<Gpu> gpu() const;  // null before
  GpuNetwork* network() const;       // null where there is none, or none is wanted
  // Why there is no network, or which there is.
  std::string nccl() const;
  const GpuChoices& choices() const { return choices_; }

 private:
  Find find_;
  const GpuChoices choices_;
  mutable Mutex mutex_;
  std::shared_ptr<Gpu> gpu_ HORON_GUARDED_BY(mutex_);
  GpuDriver* driver_ HORON_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace horon
