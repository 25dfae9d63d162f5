// PendingEntries: the entries that wait for agreement; a registration knows where its own is.
// Holder of the baton only.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/core/entry.h"

namespace horon {

class PendingEntries {
 public:
  void Put(Entry&& entry) {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(slots_.size()));
      slots_.emplace_back();
    }
    entry.what->slot = free_.back();
    free_.pop_back();
    const auto slot = static_cast<size_t>(entry.what->slot);
    numbers_.resize(slots_.size());
    numbers_[slot] = ++newest_;
    slots_[slot] = std::move(entry);
  }
  // Nothing if it does not wait.
  std::optional<Entry> Take(Registration& what) {
    if (what.slot < 0) return std::nullopt;
    return Leave(what);
  }
  // To the end of `entries`; whether it waits.
  bool Take(Registration& what, Entries& entries) {
    if (what.slot < 0) return false;
    entries.push_back(Leave(what));
    return true;
  }
  std::vector<Entry> TakeAll() {
    std::vector<Entry> all;
    for (Entry& entry : slots_) {
      if (!entry.what) continue;
      entry.what->slot = -1;
      all.push_back(std::move(entry));
    }
    slots_.clear();
    free_.clear();
    return all;
  }
  // Entries are numbered as they are put here, from 1.
  uint64_t newest() const { return newest_; }  // so far
  uint64_t oldest() const {                    // of those that wait; 0: none
    uint64_t oldest = 0;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].what && (oldest == 0 || numbers_[slot] < oldest)) oldest = numbers_[slot];
    }
    return oldest;
  }
  bool empty() const { return free_.size() == slots_.size(); }
  template <typename F>
  void ForEach(F&& f) const {
    for (const Entry& entry : slots_) {
      if (entry.what) f(entry);
    }
  }

 private:
  Entry&& Leave(Registration& what) {
    const int slot = std::exchange(what.slot, -1);
    free_.push_back(slot);
    return std::move(slots_[static_cast<size_t>(slot)]);
  }

  std::vector<Entry> slots_;  // free ones are empty
  std::vector<int> free_;
  std::vector<uint64_t> numbers_;  // by slot
  uint64_t newest_ = 0;
};

}  // namespace horon
