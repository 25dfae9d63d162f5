#include "runtime/transport/shm_bells.h"

#include <algorithm>

namespace horon {
namespace {

constexpr int kMostOwedFor = 500;  // rounds: a busy holder does not keep a sleeper waiting

}  // namespace

void ShmBells::Ring(int local) {
  const uint32_t who = segment_->Ring(local, local_rank_, Doorbell::kLender);
  if ((who & Doorbell::kAnyBackground) == 0) return;
  owed_[static_cast<size_t>(local)] = true;
  owed_for_ = std::max(owed_for_, 1);
}

void ShmBells::CountRound() {
  if (owed_for_ > 0 && ++owed_for_ > kMostOwedFor) Flush();
}

void ShmBells::Flush() {
  if (owed_for_ == 0) return;
  owed_for_ = 0;
  for (size_t i = 0; i < owed_.size(); ++i) {
    if (!owed_[i]) continue;
    owed_[i] = false;
    // Read meanwhile by a lender that came and went? Then there is nothing to wake for.
    const RingWords& words = segment_->ring(local_rank_, static_cast<int>(i));
    if (words.tail.load(std::memory_order_acquire) != words.head.load(std::memory_order_relaxed))
      RingNow(static_cast<int>(i));
  }
}

}  // namespace horon
