// Counters: what the runtime did, by name, readable at any time through the C API.
// Any thread may read or add; names are fixed strings such as "mpi.collectives"
// (docs/configuration.md lists them). A Counter keeps its address, so stages look theirs up once.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"

namespace horon {

class Counter {
 public:
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Counters {
 public:
  Counter& operator[](const std::string& name) {
    MutexLock lock(mutex_);
    auto& slot = counters_[name];
    if (!slot) slot = std::make_unique<Counter>();
    return *slot;
  }
  std::vector<std::pair<std::string, int64_t>> Snapshot() const {
    MutexLock lock(mutex_);
    std::vector<std::pair<std::string, int64_t>> rows;
    for (const auto& [name, counter] : counters_) rows.emplace_back(name, counter->value());
    return rows;
  }

 private:
  mutable Mutex mutex_;  // guards the map, not the counters
  std::map<std::string, std::unique_ptr<Counter>> counters_ HORON_GUARDED_BY(mutex_);
};

}  // namespace horon
