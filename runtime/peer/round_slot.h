// RoundSlot: a Slot that takes the message of one round at a time. Its sender puts it there, its
// owner takes it; neither locks, and neither waits.
//
// One word says what it is: 2n is free, for round n or a later one; 2n + 1 is full, with round n.
// Only the sender fills it, once the values lie there; only the owner frees it, and where it goes
// on without a round it says so before anything can be put: a message is taken, or its sender knows
// that it was not. A sender that dies in the middle has put nothing. Holder of the baton in each
// process.
#pragma once

#include "runtime/peer/slot.h"

namespace horon {

class RoundSlot {
 public:
  enum class Put { kDone, kFull, kLate };
  explicit RoundSlot(Slot slot) : slot_(slot) {}

  // The sender, or who has its message, perhaps where the slot has its values. kFull: an earlier one
  // was not taken. kLate: the owner went on without this one.
  Put TryPut(int64_t round, double share, const std::byte* values) const;
  // Where kLate: the round that the owner takes next.
  int64_t next() const { return word().load(std::memory_order_acquire) >> 1; }

  // Whether one of this round could be put there now: then its values may be written beforehand.
  bool Takes(int64_t round) const {
    const int64_t seen = word().load(std::memory_order_acquire);
    return (seen & 1) == 0 && seen >> 1 <= round;
  }

  // The owner. The round that lies there; -1: none.
  int64_t round() const {
    const int64_t seen = word().load(std::memory_order_acquire);
    return (seen & 1) != 0 ? seen >> 1 : -1;
  }
  const std::byte* values() const { return slot_.values(); }
  double share() const { return slot_.head().share; }
  // Empties it, for round `next` or a later one.
  void Free(int64_t next) const { word().store(next << 1, std::memory_order_release); }
  // Takes none before `next` any more. False: there is one.
  bool Close(int64_t next) const;
  // Messages that were refused as late, since this was asked last.
  uint32_t TakeLate() const { return slot_.head().late.exchange(0, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t>& word() const { return slot_.head().round; }
  Slot slot_;
};

}  // namespace horon
