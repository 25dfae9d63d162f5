// Baton: who runs the cycle. Its holder, and nobody else, touches negotiator, executor and
// transports.
//
// The background thread holds it while it is awake and gives it back before it sleeps; a blocking
// caller may take it then and run the cycle on its own thread, which saves waking another one
// (20-26 us on the machines measured, more than a small allreduce). docs/threads.md has the whole
// protocol.
#pragma once

#include <atomic>
#include <chrono>

#include "runtime/base/futex.h"

namespace horon {

class Baton {
 public:
  bool TryTake() {
    uint32_t free = kFree;
    return state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire);
  }
  // Blocks until taken. The background thread only: a lender that cannot have it waits for its
  // Work.
  void Take() {
    while (!TryTake()) {
      uint32_t held = kHeld;
      state_.compare_exchange_strong(held, kHeldAndAwaited, std::memory_order_relaxed);
      if (state_.load(std::memory_order_relaxed) == kHeldAndAwaited) {
        FutexWait(state_, kHeldAndAwaited, ~0u, std::chrono::seconds(10));
      }
    }
  }
  void Give() {
    if (state_.exchange(kFree, std::memory_order_release) == kHeldAndAwaited)
      FutexWake(state_, ~0u);
  }

  // A lender that is trying says so; the background thread then gives way between two cycles.
  void Want(int change) { wanted_.fetch_add(change, std::memory_order_relaxed); }
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) > 0; }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kHeldAndAwaited = 2;
  std::atomic<uint32_t> state_{kFree};
  std::atomic<int> wanted_{0};
};

}  // namespace horon
