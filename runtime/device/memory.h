// Memory of one device, and pools of it. The host's is memory_host.cc; a GPU makes its own (gpu.h).
// Any thread may call all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor.h"

namespace horon {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual Device device() const = 0;
  // Blocks until done where the device's allocator does. Aligned to 64 bytes at least.
  virtual Result<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* data, int64_t bytes) = 0;
};

std::unique_ptr<Memory> MakeHostMemory();

// Buffers that are used again. Free lists by size, powers of two up to 1 MiB and eighths of them
// beyond; what is returned stays mapped until Trim or the pool's end, so a steady training step
// allocates nothing (fresh pages cost more than the collective itself). Thread safe: works may be
// released on any user thread.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  // What it holds, and what of that is taken, is in `counters`: pool.bytes, pool.taken_bytes.
  explicit Pool(std::unique_ptr<Memory> memory,
                std::shared_ptr<Counters> counters = std::make_shared<Counters>());
  ~Pool();

  // Move-only; returns its bytes to the pool. data() is null only for 0 bytes.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer() { Release(); }
    std::byte* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

   private:
    friend class Pool;
    void Release();
    std::shared_ptr<Pool> pool_;
    std::byte* data_ = nullptr;
    int64_t bytes_ = 0;
    int size_class_ = 0;
  };
  Result<Buffer> Take(int64_t bytes);
  void Trim();  // gives every free buffer back to the device
  int64_t held_bytes() const { return held_.value(); }  // taken and free together

 private:
  static constexpr int kClasses = 20 + 8 * 28;
  const std::unique_ptr<Memory> memory_;
  const std::shared_ptr<Counters> counters_;
  Counter &held_, &taken_;
  Mutex mutex_;  // guards the lists
  std::vector<std::byte*> free_[kClasses] HORON_GUARDED_BY(mutex_);
};
using Buffer = Pool::Buffer;

}  // namespace horon
