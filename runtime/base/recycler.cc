#include "runtime/base/recycler.h"

#include <new>

// Of gcc and clang: without an address sanitizer in the build its macros do nothing.
#include <sanitizer/asan_interface.h>

namespace horon {

constinit thread_local Recycler* Recycler::current_ = nullptr;

Recycler::~Recycler() {
  for (Free* free : free_) {
    while (free != nullptr) {
      ASAN_UNPOISON_MEMORY_REGION(free, sizeof(Free));
      ::operator delete(std::exchange(free, free->next));
    }
  }
}

// From the heap, too, a whole block of its class: it may be returned to a list.
void* Recycler::Take(size_t bytes) {
  if (bytes > kLargest) return ::operator new(bytes);
  const size_t at = ClassOf(bytes), block = kSmallest << at;
  Recycler* const from = current_;
  if (from == nullptr || from->free_[at] == nullptr) return ::operator new(block);
  Free* const taken = from->free_[at];
  ASAN_UNPOISON_MEMORY_REGION(taken, block);
  from->free_[at] = taken->next;
  from->free_bytes_ -= block;
  return taken;
}

// Nobody may use it until it is taken again, and the address sanitizer sees to that.
void Recycler::Return(void* memory, size_t bytes) noexcept {
  const size_t at = bytes > kLargest ? 0 : ClassOf(bytes), block = kSmallest << at;
  Recycler* const to = current_;
  if (bytes > kLargest || to == nullptr || to->free_bytes_ + block > kMostFree) {
    ::operator delete(memory);
    return;
  }
  to->free_[at] = new (memory) Free{to->free_[at]};
  to->free_bytes_ += block;
  ASAN_POISON_MEMORY_REGION(memory, block);
}

}  // namespace horon
