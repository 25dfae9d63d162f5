// KeptMemory: the allocator of a kind of thing that is made on one thread and ends on another,
// again and again: its memory is kept for the next one, so that a steady call takes nothing from
// the heap. What runs in the cycle has a Recycler instead, which needs no lock.
//
// Any thread. The lock is only tried: a thread that finds it taken goes to the heap, as does one
// that was forked while it was taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

namespace horon {

template <typename T>
class KeptMemory {
 public:
  using value_type = T;
  static constexpr int kMostKept = 4096;

  KeptMemory() = default;
  template <typename Other>
  KeptMemory(const KeptMemory<Other>&) {}  // NOLINT: allocators convert
  T* allocate(std::size_t count) {
    void* memory = count == 1 ? Take() : nullptr;
    if (memory == nullptr) memory = ::operator new(count * sizeof(T));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    if (count != 1 || !Keep(memory)) ::operator delete(memory);
  }
  bool operator==(const KeptMemory&) const { return true; }

 private:
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  struct Free {
    Free* next;
  };
  static_assert(sizeof(T) >= sizeof(Free));
  struct Kept {
    std::atomic_flag busy;
    Free* first = nullptr;
    int count = 0;
  };
  static Kept& kept() {
    static Kept& all = *new Kept;  // the last thing may end after main
    return all;
  }
  static void* Take() {
    Kept& all = kept();
    if (all.busy.test_and_set(std::memory_order_acquire)) return nullptr;
    Free* const taken = all.first;
    if (taken != nullptr) {
      all.first = taken->next;
      --all.count;
    }
    all.busy.clear(std::memory_order_release);
    return taken;
  }
  static bool Keep(void* memory) {
    Kept& all = kept();
    if (all.busy.test_and_set(std::memory_order_acquire)) return false;
    const bool room = all.count < kMostKept;
    if (room) {
      all.first = ::new (memory) Free{all.first};
      ++all.count;
    }
    all.busy.clear(std::memory_order_release);
    return room;
  }
};

}  // namespace horon
