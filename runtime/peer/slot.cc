#include "runtime/peer/slot.h"

#include <cerrno>
#include <cstring>
#include <new>

namespace horon {

void Slot::Make() {
  auto* made = new (at_) SlotHead;
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&made->mutex, &kind);
  pthread_mutexattr_destroy(&kind);
}

bool Slot::TryLock() const {
  const int code = pthread_mutex_trylock(&head().mutex);
  if (code == 0) return true;
  if (code != EOWNERDEAD) return false;
  std::memset(values(), 0, static_cast<size_t>(bytes_));
  head().share = 0;
  head().deliveries.store(0, std::memory_order_relaxed);
  head().wiped = true;
  pthread_mutex_consistent(&head().mutex);
  return true;
}

}  // namespace horon
