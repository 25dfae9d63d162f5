// Recycler: memory of the small things that come and go with every bucket (frames of tasks, lists
// of its tensors, what an op notes of them), so that a steady step takes nothing from the heap.
//
// Each runtime has one, which the holder of the baton puts in use for a cycle: what its thread
// takes meanwhile comes from there, if something of that size has been returned before, and what it
// returns stays there. Where none is in use, on other threads and in tests of parts, both go to the
// heap; what was taken in one way may be returned in the other. Things larger than kLargest always
// go there. Free lists by power-of-two size, as in Pool, which is for buffers.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace horon {

class Recycler {
 public:
  static constexpr size_t kSmallest = 64, kLargest = 512 << 10;  // bytes, of a free list
  static constexpr size_t kMostFree = 8 << 20;                   // of all free lists; more is freed

  Recycler() = default;
  ~Recycler();
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;

  // While it lives, this thread takes from and returns to this one.
  class InUse {
   public:
    explicit InUse(Recycler& recycler) : before_(std::exchange(current_, &recycler)) {}
    ~InUse() { current_ = before_; }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    Recycler* before_;
  };

  static void* Take(size_t bytes);
  static void Return(void* memory, size_t bytes) noexcept;  // as many as were taken
  size_t free_bytes() const { return free_bytes_; }

 private:
  struct Free {
    Free* next;
  };
  static constexpr size_t kClasses = std::bit_width(kLargest) - std::bit_width(kSmallest) + 1;
  static size_t ClassOf(size_t bytes) {
    return bytes <= kSmallest ? 0 : std::bit_width(bytes - 1) - std::bit_width(kSmallest - 1);
  }
  static thread_local Recycler* current_;

  std::array<Free*, kClasses> free_{};
  size_t free_bytes_ = 0;
};

// Base of classes whose `new` takes from the recycler.
struct Recycled {
  static void* operator new(size_t bytes) { return Recycler::Take(bytes); }
  static void operator delete(void* memory, size_t bytes) noexcept {
    Recycler::Return(memory, bytes);
  }
};

// The allocator of containers that live no longer than a bucket does, or on the baton's holder.
template <typename T>
struct Recycling {
  using value_type = T;
  Recycling() = default;
  template <typename U>
  Recycling(const Recycling<U>&) {}  // NOLINT: implicit, as allocators are
  T* allocate(size_t n) { return static_cast<T*>(Recycler::Take(n * sizeof(T))); }
  void deallocate(T* memory, size_t n) noexcept { Recycler::Return(memory, n * sizeof(T)); }
  template <typename U>
  bool operator==(const Recycling<U>&) const {
    return true;
  }
};
template <typename T>
using RecycledVector = std::vector<T, Recycling<T>>;

}  // namespace horon
