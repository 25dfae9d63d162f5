// Doorbell: how a sleeping runtime is woken, from its own process or from a peer's.
//
// One per rank, in memory that all who may ring it can see (a shared segment, or the process's
// own). The sleeper announces itself, looks once more for work, then sleeps; the ringer first
// publishes its work, then looks whether anybody sleeps. Both sides have a full fence in between,
// so one of the two always sees the other (Dekker). Ringing a rank that is awake costs one load.
//
// At most one thread sleeps at a time on behalf of a rank: the last holder of the baton
// (core/baton.h). The sleeper's word tells which of the two threads that is, so that a ring wakes
// only that one, and what it waits for: kIdle is the background thread with no bucket in flight,
// whom only messages concern.
//
// Waking costs 20-26 us, and a rank in a loop of blocking calls is back before that. So a message
// to a background thread is not rung for at once: the sender remembers it (ShmTransport::Flush) and
// rings before it goes to sleep itself, or returns to its user, if the message has not been read by
// then.
//
// A rank whose queue waits until there is more to do says so (Hold). Peers that go to sleep because
// of it say that (Await); whoever comes second sees the first, and wakes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "runtime/base/futex.h"

namespace horon {

class Doorbell {
 public:
  static constexpr uint32_t kAwake = 0, kBackground = 1, kLender = 2, kIdle = 4;
  static constexpr uint32_t kAnyBackground = kBackground | kIdle;

  // Any thread, any process. Call after the work was published. Wakes the sleeper if it is one of
  // `whom`; returns who sleeps.
  uint32_t Ring(uint32_t whom = kAnyBackground | kLender) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint32_t who = sleeper_.load(std::memory_order_relaxed);
    if ((who & whom) != 0) Wake(who);
    return who;
  }
  void Wake(uint32_t who) {
    rings_.fetch_add(1, std::memory_order_release);
    FutexWake(rings_, who);
  }

  // The sleeper: Announce, then look for work once more, then Sleep if there was none. Awake again
  // after either. The ticket from Announce makes a ring in between count.
  uint32_t Announce(uint32_t who) {
    const uint32_t ticket = rings_.load(std::memory_order_acquire);
    sleeper_.store(who, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return ticket;
  }
  void Sleep(uint32_t ticket, uint32_t who, std::chrono::nanoseconds timeout) {
    FutexWait(rings_, ticket, who, timeout);
  }
  // Without announcing anybody: a ticket, which counts the rings; and who is announced, which is
  // not older than the rings in a ticket that was taken before.
  uint32_t ticket() const { return rings_.load(std::memory_order_acquire); }
  uint32_t sleeper() const { return sleeper_.load(std::memory_order_relaxed); }
  void Awake() { sleeper_.store(kAwake, std::memory_order_relaxed); }

  // The rank's own threads. Work was published, and nobody woken for it. Whether a peer waits, so
  // that it must ring all the same.
  bool Hold() {
    held_.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return awaited_.load(std::memory_order_relaxed) != 0;
  }
  bool holds() const { return held_.load(std::memory_order_relaxed) != 0; }
  // Before it looks for work.
  void LetGo() {
    if (holds()) held_.store(0, std::memory_order_relaxed);
  }

  // A peer that is about to sleep, until this rank has done something; and afterwards.
  void Await() {
    awaited_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (holds()) Ring(kAnyBackground);
  }
  void AwaitNoMore() { awaited_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> sleeper_{kAwake};
  std::atomic<uint32_t> held_{0}, awaited_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace horon
