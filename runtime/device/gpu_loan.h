// Buffers that a device may still use when the host is done with them: they go back to their pool
// once an event says so. Any thread.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/gpu.h"

namespace horon {

// Where such buffers wait.
class GpuReturns {
 public:
  // Until all of the events are done. With a null one it stays here: nobody knows when it is free.
  void Add(std::vector<SharedEvent> events, Buffer buffer) {
    MutexLock lock(mutex_);
    waiting_.emplace_back(std::move(events), std::move(buffer));
  }
  // Gives back what is free.
  void Sweep() {
    MutexLock lock(mutex_);
    std::erase_if(waiting_, [](const auto& item) {
      return std::all_of(item.first.begin(), item.first.end(), [](const SharedEvent& event) {
        if (!event) return false;
        const Result<bool> done = event->Done();
        return done.ok() && done.value();
      });
    });
  }

 private:
  Mutex mutex_;
  std::vector<std::pair<std::vector<SharedEvent>, Buffer>> waiting_ HORON_GUARDED_BY(mutex_);
};

// An output that its work owns. It may be dropped while kernels of the user's streams still read it,
// that which it was asked for on and those that wait for it, or before the device has written it.
class GpuLoan {
 public:
  GpuLoan(std::shared_ptr<Gpu> gpu, std::shared_ptr<GpuReturns> returns, void* stream,
          Buffer buffer)
      : gpu_(std::move(gpu)),
        returns_(std::move(returns)),
        buffer_(std::move(buffer)),
        readers_{stream} {}
  GpuLoan(const GpuLoan&) = delete;
  GpuLoan& operator=(const GpuLoan&) = delete;
  ~GpuLoan() {
    MutexLock lock(mutex_);
    std::vector<SharedEvent> over;
    if (written_) over.push_back(std::move(written_));
    for (void* const stream : readers_) {
      auto event = gpu_->RecordOfAnyThread(stream);
      over.push_back(event.ok() ? std::move(event).value() : nullptr);
    }
    returns_->Add(std::move(over), std::move(buffer_));
  }
  std::byte* data() const { return buffer_.data(); }
  // Behind the last work that writes it.
  void WrittenBy(SharedEvent event) {
    MutexLock lock(mutex_);
    written_ = std::move(event);
  }
  // This stream of the user's waits for it.
  void ReadOn(void* stream) {
    MutexLock lock(mutex_);
    if (std::find(readers_.begin(), readers_.end(), stream) == readers_.end())
      readers_.push_back(stream);
  }

 private:
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<GpuReturns> returns_;
  Buffer buffer_;
  Mutex mutex_;
  SharedEvent written_ HORON_GUARDED_BY(mutex_);
  std::vector<void*> readers_ HORON_GUARDED_BY(mutex_);
};

}  // namespace horon
