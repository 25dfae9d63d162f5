// ProcessSets: the groups of ranks that requests may name, the same on every rank at the same place
// in the stream of responses. Set 0 is all ranks. Changed by the negotiator, read by any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"

namespace horon {

class ProcessSets {
 public:
  using Ranks = std::shared_ptr<const std::vector<int>>;  // ascending global ranks

  explicit ProcessSets(int size) {
    auto all = std::make_shared<std::vector<int>>();
    for (int r = 0; r < size; ++r) all->push_back(r);
    sets_[0] = {all, false};
  }
  Ranks Find(int32_t id) const {  // null: no such set
    MutexLock lock(mutex_);
    const auto it = sets_.find(id);
    return it == sets_.end() ? nullptr : it->second.ranks;
  }
  // `formed`: by its members alone.
  void Add(int32_t id, std::vector<int> ranks, bool formed = false) {
    MutexLock lock(mutex_);
    sets_[id] = {std::make_shared<const std::vector<int>>(std::move(ranks)), formed};
    last_ = std::max(last_, id);
  }
  void Remove(int32_t id) {
    MutexLock lock(mutex_);
    sets_.erase(id);
    removals_.fetch_add(1, std::memory_order_release);
  }
  int removals() const { return removals_.load(std::memory_order_acquire); }  // so far
  // The set with exactly these ranks, or -1. Those that were formed, and those that all ranks have
  // added, know nothing of each other: a library's groups are not in its user's way.
  int32_t IdOf(const std::vector<int>& ranks, bool formed = false) const {
    MutexLock lock(mutex_);
    for (const auto& [id, set] : sets_) {
      if (*set.ranks == ranks && (id == 0 || set.formed == formed)) return id;
    }
    return -1;
  }
  // Never used before, so that nothing of an old set can be taken for a new one's; and different
  // from every live one modulo kSlots, which is what tags have room for. -1 when all slots are
  // taken.
  static constexpr int32_t kSlots = 256;
  int32_t NextId(int skip = 0) const {  // `skip`: the first ones are promised already
    MutexLock lock(mutex_);
    for (int32_t id = last_ + 1; id <= last_ + kSlots; ++id) {
      bool taken = false;
      for (const auto& [live, set] : sets_) taken = taken || live % kSlots == id % kSlots;
      if (!taken && skip-- == 0) return id;
    }
    return -1;
  }

 private:
  struct Set {
    Ranks ranks;
    bool formed = false;
  };
  mutable Mutex mutex_;
  std::map<int32_t, Set> sets_ HORON_GUARDED_BY(mutex_);
  int32_t last_ HORON_GUARDED_BY(mutex_) = 0;
  std::atomic<int> removals_{0};
};

}  // namespace horon
