#include "runtime/peer/round_slot.h"

#include <cstring>

namespace horon {

RoundSlot::Put RoundSlot::TryPut(int64_t round, double share, const std::byte* values) const {
  int64_t seen = word().load(std::memory_order_acquire);
  for (;;) {
    if ((seen & 1) != 0) return Put::kFull;
    if (seen >> 1 > round) {
      slot_.head().late.fetch_add(1, std::memory_order_relaxed);
      return Put::kLate;
    }
    if (slot_.bytes() > 0 && values != slot_.values())
      std::memcpy(slot_.values(), values, static_cast<size_t>(slot_.bytes()));
    slot_.head().share = share;
    // Closed further meanwhile? Then it is looked at again.
    if (word().compare_exchange_strong(seen, round << 1 | 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      return Put::kDone;
  }
}

bool RoundSlot::Close(int64_t next) const {
  int64_t seen = word().load(std::memory_order_acquire);
  while ((seen & 1) == 0 && seen >> 1 < next) {
    if (word().compare_exchange_strong(seen, next << 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      return true;
  }
  return (seen & 1) == 0;
}

}  // namespace horon
