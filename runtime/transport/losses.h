// Losses: the news that a rank is lost, where the node's segment cannot carry it: the rank lives on
// another node, or this one is alone on its own. Written by the watch thread (watch.h), read by the
// holder of the baton every cycle.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "runtime/base/doorbell.h"
#include "runtime/base/mutex.h"

namespace horon {

class Losses {
 public:
  // -1: the way to all others. The first sentence stays. Any thread; whoever reports also rings the
  // runtime's bell.
  void Report(int rank, const std::string& sentence) {
    MutexLock lock(mutex_);
    ranks_.push_back(rank);
    if (any_.load(std::memory_order_relaxed)) return;
    sentence_ = sentence;
    any_.store(true, std::memory_order_release);
  }
  bool any() const { return any_.load(std::memory_order_acquire); }
  std::string sentence() const {
    MutexLock lock(mutex_);
    return sentence_;
  }
  // Whether that rank was reported, or the way to all. Any thread.
  bool Has(int rank) const {
    if (!any()) return false;
    MutexLock lock(mutex_);
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [rank](int lost) { return lost == rank || lost < 0; });
  }
  // Wakes the runtime of a rank that has no segment.
  Doorbell& bell() { return bell_; }

 private:
  mutable Mutex mutex_;
  std::string sentence_ HORON_GUARDED_BY(mutex_);
  std::vector<int> ranks_ HORON_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
  Doorbell bell_;
};

}  // namespace horon
