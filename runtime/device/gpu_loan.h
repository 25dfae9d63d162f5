// Buffers that a device may still use when the host is done with them: they go back to their pool
// once an event says so. Any thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/gpu.h"

namespace horon {

// Where such buffers wait.
class GpuReturns {
 public:
  // Without an event it stays here: nobody knows when it is free.
  void Add(SharedEvent event, Buffer buffer) {
    MutexLock lock(mutex_);
    waiting_.emplace_back(std::move(event), std::move(buffer));
  }
  // Gives back what is free.
  void Sweep() {
    MutexLock lock(mutex_);
    std::erase_if(waiting_, [](const auto& item) {
      if (!item.first) return false;
      const Result<bool> done = item.first->Done();
      return done.ok() && done.value();
    });
  }

 private:
  Mutex mutex_;
  std::vector<std::pair<SharedEvent, Buffer>> waiting_ HORON_GUARDED_BY(mutex_);
};

// An output that its work owns: it may be dropped while kernels of the user's stream, the one that
// it was asked for on, still read it.
class GpuLoan {
 public:
  GpuLoan(std::shared_ptr<Gpu> gpu, std::shared_ptr<GpuReturns> returns, void* stream,
          Buffer buffer)
      : gpu_(std::move(gpu)),
        returns_(std::move(returns)),
        stream_(stream),
        buffer_(std::move(buffer)) {}
  GpuLoan(const GpuLoan&) = delete;
  GpuLoan& operator=(const GpuLoan&) = delete;
  ~GpuLoan() {
    auto event = gpu_->Record(stream_);
    returns_->Add(event.ok() ? std::move(event).value() : nullptr, std::move(buffer_));
  }
  std::byte* data() const { return buffer_.data(); }

 private:
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<GpuReturns> returns_;
  void* stream_;
  Buffer buffer_;
};

}  // namespace horon
