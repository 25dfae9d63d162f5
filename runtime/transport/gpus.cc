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
  if (choices_.nccl_needed && driver_->network() == nullptr) {
    return Status::Unsupported("HORON_INTER=nccl, but there is no NCCL that it could use: " +
                               driver_->nccl().text + ". HORON_INTER=mpi needs none");
  }
  if (choices_.pairs == PairKernels::kCublas && driver_->cublas().version == 0) {
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
  return driver_ != nullptr && choices_.nccl ? driver_->network() : nullptr;
}

std::string Gpus::nccl() const {
  if (!choices_.nccl) return "HORON_NCCL=0";
  MutexLock lock(mutex_);
  return driver_ != nullptr ? driver_->nccl().text : "no GPU was used yet";
}

}  // namespace horon
