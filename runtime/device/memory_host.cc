#include <sys/mman.h>

#include <cstdlib>

#include "runtime/device/memory.h"

namespace horon {
namespace {

constexpr size_t kAlignment = 64;
// Of Linux on x86-64 and most others; where they are larger, or are not to be had, nothing is
// gained.
constexpr size_t kHugePage = size_t{2} << 20;

class HostMemory final : public Memory {
 public:
  Device device() const override { return {}; }
  Result<std::byte*> Allocate(int64_t bytes) override {
    const bool huge = static_cast<size_t>(bytes) >= 2 * kHugePage;
    const size_t alignment = huge ? kHugePage : kAlignment;
    const size_t rounded = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, rounded);
    if (data == nullptr) {
      return Status::Unavailable("out of memory: " + std::to_string(bytes) + " bytes on the host");
    }
    if (huge) madvise(data, rounded, MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t) override { std::free(data); }
};

int ClassOf(int64_t bytes) {
  int size_class = 6;  // 64 bytes
  while ((int64_t{1} << size_class) < bytes) ++size_class;
  return size_class;
}

}  // namespace

std::unique_ptr<Memory> MakeHostMemory() { return std::make_unique<HostMemory>(); }

Pool::~Pool() { Trim(); }

Result<Pool::Buffer> Pool::Take(int64_t bytes) {
  Buffer buffer;
  buffer.bytes_ = bytes;
  if (bytes == 0) return buffer;
  const int size_class = ClassOf(bytes);
  if (size_class >= kClasses)
    return Status::Unavailable("a buffer of " + std::to_string(bytes) + " bytes is too large");
  {
    MutexLock lock(mutex_);
    auto& list = free_[size_class];
    if (!list.empty()) {
      buffer.data_ = list.back();
      list.pop_back();
    }
  }
  if (buffer.data_ == nullptr) {
    HORON_ASSIGN(buffer.data_, memory_->Allocate(int64_t{1} << size_class));
    MutexLock lock(mutex_);
    held_bytes_ += int64_t{1} << size_class;
  }
  buffer.size_class_ = size_class;
  buffer.pool_ = shared_from_this();
  return buffer;
}

void Pool::Trim() {
  MutexLock lock(mutex_);
  for (int c = 0; c < kClasses; ++c) {
    for (std::byte* data : free_[c]) {
      memory_->Free(data, int64_t{1} << c);
      held_bytes_ -= int64_t{1} << c;
    }
    free_[c].clear();
  }
}

int64_t Pool::held_bytes() const {
  MutexLock lock(mutex_);
  return held_bytes_;
}

Pool::Buffer& Pool::Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  pool_ = std::move(other.pool_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  size_class_ = other.size_class_;
  return *this;
}

void Pool::Buffer::Release() {
  if (data_ != nullptr) {
    MutexLock lock(pool_->mutex_);
    pool_->free_[size_class_].push_back(data_);
  }
  data_ = nullptr;
  pool_.reset();
}

}  // namespace horon
