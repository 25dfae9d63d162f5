// Slot: what one edge of a window holds: values, their push-sum weight, and how often they were
// delivered since they were last taken. It lies in memory that the ranks of a node share.
//
// Whoever reads or writes the values has the slot's lock, for one pass over them and never while it
// waits, so no value is torn. The lock is the kernel's robust kind: if its holder dies, the next
// one finds out and wipes what may be half written. Any process; the holder of the baton in each.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace horon {

struct SlotHead {
  pthread_mutex_t mutex;
  std::atomic<uint64_t> deliveries{0};  // since the last update took them
  double share = 0;                     // push-sum weight; under the lock
  bool wiped = false;                   // of a dead holder's values; nothing came since
  bool empty = false;                   // under the lock: counts as zeros, whatever lies there
  std::atomic<bool> asked{true};        // the owner wants a part; who gives one only then clears it
  std::atomic<uint32_t> late{0};        // these two: round_slot.h
  std::atomic<int64_t> round{0};
};

class Slot {
 public:
  static constexpr int64_t kHeadBytes = 128;
  static_assert(sizeof(SlotHead) <= kHeadBytes);
  // That a slot for so many bytes of values takes.
  static int64_t BytesFor(int64_t bytes) { return kHeadBytes + (bytes + 63) / 64 * 64; }

  Slot(std::byte* at, int64_t bytes) : at_(at), bytes_(bytes) {}
  void Make();  // once, by the owner, in zeroed memory

  SlotHead& head() const { return *reinterpret_cast<SlotHead*>(at_); }
  std::byte* values() const { return at_ + kHeadBytes; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class SlotLock;
  bool TryLock() const;

  std::byte* at_;
  int64_t bytes_;
};

// Holds the slot while it lives, if it was free.
class SlotLock {
 public:
  explicit SlotLock(const Slot& slot) : slot_(slot), held_(slot.TryLock()) {}
  ~SlotLock() {
    if (held_) pthread_mutex_unlock(&slot_.head().mutex);
  }
  SlotLock(const SlotLock&) = delete;
  SlotLock& operator=(const SlotLock&) = delete;
  bool held() const { return held_; }

 private:
  const Slot slot_;
  bool held_;
};

}  // namespace horon
