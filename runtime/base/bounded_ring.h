// BoundedRing: what one thread leaves for another without a lock. When it is full, what comes is
// dropped and counted: the writer never waits.
//
// One thread at a time puts (whoever holds the baton, which orders them), one takes. The places are
// made once.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace horon {

template <typename T>
class BoundedRing {
 public:
  // `places`: a power of two.
  explicit BoundedRing(size_t places) : places_(places), mask_(places - 1) {}

  // False if it was full. The putting thread.
  bool Put(T&& item) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_seen_ == places_.size()) {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head - tail_seen_ == places_.size()) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return false;
      }
    }
    places_[head & mask_] = std::move(item);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  // The taking thread.
  std::optional<T> Take() {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail == head_.load(std::memory_order_acquire)) return std::nullopt;
    std::optional<T> item(std::move(places_[tail & mask_]));
    tail_.store(tail + 1, std::memory_order_release);
    return item;
  }
  // Any thread.
  uint64_t size() const {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    return head_.load(std::memory_order_relaxed) - tail;
  }
  size_t capacity() const { return places_.size(); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  std::vector<T> places_;
  uint64_t mask_;
  alignas(64) std::atomic<uint64_t> head_{0};
  uint64_t tail_seen_ = 0;  // of the putting thread: saves it a look at the other's cache line
  std::atomic<uint64_t> dropped_{0};
  alignas(64) std::atomic<uint64_t> tail_{0};
};

}  // namespace horon
