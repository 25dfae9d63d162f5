// Losses: the news that a rank is lost, where the node's segment cannot carry it: the rank lives on
// another node, or this one is alone on its own. Written by the watch thread (watch.h), read by the
// holder of the baton every cycle.
#pragma once

#include <atomic>
#include <string>

#include "runtime/base/doorbell.h"
#include "runtime/base/mutex.h"

namespace horon {

class Losses {
 public:
  // The first sentence stays. Any thread; whoever reports also rings the runtime's bell.
  void Report(const std::string& sentence) {
    MutexLock lock(mutex_);
    if (any_.load(std::memory_order_relaxed)) return;
    sentence_ = sentence;
    any_.store(true, std::memory_order_release);
  }
  bool any() const { return any_.load(std::memory_order_acquire); }
  std::string sentence() const {
    MutexLock lock(mutex_);
    return sentence_;
  }
  // Wakes the runtime of a rank that has no segment.
  Doorbell& bell() { return bell_; }

 private:
  mutable Mutex mutex_;
  std::string sentence_ HORON_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
  Doorbell bell_;
};

}  // namespace horon
