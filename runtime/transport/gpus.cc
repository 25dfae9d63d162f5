#include "runtime/transport/gpus.h"

namespace horon {

Result<std::shared_ptr<Gpu>> Gpus::Of(Device device) {
  MutexLock lock(mutex_);
  if (gpu_ && gpu_->device() == device) return gpu_;
  if (gpu_) {
    return Status::InvalidArgument(
        "it lies on " + ToString(device) + ", but this rank has used " + ToString(gpu_->device()) +
        " before: a rank works with one GPU (torch.cuda.set_device(hvd.local_rank()))");
  }
  HORON_ASSIGN(driver_, find_());
  if (device.index >= driver_->devices()) {
    return Status::InvalidArgument("it lies on " + ToString(device) + ", but this process sees " +
                                   std::to_string(driver_->devices()) + " GPUs");
  }
  if (pairs_ == PairKernels::kCublas && driver_->cublas().version == 0) {
    return Status::Unsupported(
        "HORON_ADASUM_KERNEL=cublas, but there is no cuBLAS that it could use: " +
        driver_->cublas().text + ". HORON_ADASUM_KERNEL=fused needs none");
  }
  HORON_ASSIGN(gpu_, driver_->Open(device.index));
  return gpu_;
}

std::shared_ptr<Gpu> Gpus::gpu() const {
  MutexLock lock(mutex_);
  return gpu_;
}

GpuNetwork* Gpus::network() const {
  MutexLock lock(mutex_);
  return driver_ != nullptr && nccl_ ? driver_->network() : nullptr;
}

}  // namespace horon
