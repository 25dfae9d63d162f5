// ProcessSets: the groups of ranks that requests may name, the same on every rank at the same place in
// the stream of responses. Set 0 is all ranks. Changed by the negotiator, read by any thread.
#pragma once

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
    sets_[0] = all;
    uses_[0] = 1;
  }
  Ranks Find(int32_t id) const {  // null: no such set
    MutexLock lock(mutex_);
    const auto it = sets_.find(id);
    return it == sets_.end() ? nullptr : it->second;
  }
  void Add(int32_t id, std::vector<int> ranks) {
    MutexLock lock(mutex_);
    sets_[id] = std::make_shared<const std::vector<int>>(std::move(ranks));
    ++uses_[id];
  }
  // How many sets have had this number so far; the same on every rank.
  int uses(int32_t id) const {
    MutexLock lock(mutex_);
    const auto it = uses_.find(id);
    return it == uses_.end() ? 0 : it->second;
  }
  void Remove(int32_t id) {
    MutexLock lock(mutex_);
    sets_.erase(id);
  }
  // The set with exactly these ranks, or -1.
  int32_t IdOf(const std::vector<int>& ranks) const {
    MutexLock lock(mutex_);
    for (const auto& [id, set] : sets_) {
      if (*set == ranks) return id;
    }
    return -1;
  }
  int32_t NextId() const {  // ids are used again
    MutexLock lock(mutex_);
    int32_t id = 1;
    while (sets_.contains(id)) ++id;
    return id;
  }

 private:
  mutable Mutex mutex_;
  std::map<int32_t, Ranks> sets_ HORON_GUARDED_BY(mutex_);
  std::map<int32_t, int> uses_ HORON_GUARDED_BY(mutex_);
};

}  // namespace horon
