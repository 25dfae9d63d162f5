#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "runtime/device/memory.h"

namespace horon {
namespace {

constexpr size_t kAlignment = 64;
// Of Linux on x86-64 and most others; where they are larger, or are not to be had, nothing is
// gained.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeBytes = 2 * kHugePage;  // from here on

size_t Aligned(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Pages of its own, so that what is said of them is not said of the program's later allocations.
void* MapHuge(size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = Aligned(begin, kHugePage);
  if (aligned > begin) munmap(mapped, aligned - begin);
  const uintptr_t after = begin + kHugePage - aligned;
  if (after > 0) munmap(reinterpret_cast<void*>(aligned + bytes), after);
  void* const data = reinterpret_cast<void*>(aligned);
  madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

class HostMemory final : public Memory {
 public:
  Device device() const override { return {}; }
  Result<std::byte*> Allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    void* const data = size >= kHugeBytes
                           ? MapHuge(Aligned(size, kHugePage))
                           : std::aligned_alloc(kAlignment, Aligned(size, kAlignment));
    if (data == nullptr) {
      return Status::Unavailable("out of memory: " + std::to_string(bytes) + " bytes on the host");
    }
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    if (size >= kHugeBytes) {
      munmap(data, Aligned(size, kHugePage));
    } else {
      std::free(data);
    }
  }
};

// Classes are powers of two up to 1 MiB, and eight steps from each to the next from there on.
constexpr int kFine = 20, kSteps = 8;
int64_t SizeOfClass(int size_class) {
  if (size_class <= kFine) return int64_t{1} << size_class;
  const int octave = (size_class - kFine) / kSteps, step = (size_class - kFine) % kSteps;
  return int64_t{kSteps + step} << (kFine - 3 + octave);
}
int ClassOf(int64_t bytes) {
  int size_class = 6;  // 64 bytes
  while (SizeOfClass(size_class) < bytes) ++size_class;
  return size_class;
}
static_assert(kSteps == 1 << 3);

}  // namespace

std::unique_ptr<Memory> MakeHostMemory() { return std::make_unique<HostMemory>(); }

Pool::Pool(std::unique_ptr<Memory> memory, std::shared_ptr<Counters> counters)
    : memory_(std::move(memory)),
      counters_(std::move(counters)),
      held_((*counters_)["pool.bytes"]),
      taken_((*counters_)["pool.taken_bytes"]) {}

Pool::~Pool() { Trim(); }

Result<Pool::Buffer> Pool::Take(int64_t bytes) {
  Buffer buffer;
  buffer.bytes_ = bytes;
  if (bytes == 0) return buffer;
  if (bytes > SizeOfClass(kClasses - 1))
    return Status::Unavailable("a buffer of " + std::to_string(bytes) + " bytes is too large");
  int size_class = ClassOf(bytes);
  {
    MutexLock lock(mutex_);
    // One that is less than twice as large will do: sizes that change would fill all classes.
    for (int c = size_class; c < std::min(kClasses, size_class + kSteps); ++c) {
      if (free_[c].empty() || (size_class < kFine && c > size_class)) continue;
      buffer.data_ = free_[c].back();
      free_[c].pop_back();
      size_class = c;
      break;
    }
  }
  if (buffer.data_ == nullptr) {
    HORON_ASSIGN(buffer.data_, memory_->Allocate(SizeOfClass(size_class)));
    held_.Add(SizeOfClass(size_class));
  }
  taken_.Add(SizeOfClass(size_class));
  buffer.size_class_ = size_class;
  buffer.pool_ = shared_from_this();
  return buffer;
}

void Pool::Trim() {
  MutexLock lock(mutex_);
  for (int c = 0; c < kClasses; ++c) {
    for (std::byte* data : free_[c]) {
      memory_->Free(data, SizeOfClass(c));
      held_.Add(-SizeOfClass(c));
    }
    free_[c].clear();
  }
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
    pool_->taken_.Add(-SizeOfClass(size_class_));
    MutexLock lock(pool_->mutex_);
    pool_->free_[size_class_].push_back(data_);
  }
  data_ = nullptr;
  pool_.reset();
}

}  // namespace horon
