// Foresight: brings memory near before its turn, where the same things come again and again in the
// same order, as the tensors of a training step do. A thousand of them, with all that belongs to
// each, are more than near caches hold, and each line that comes from memory costs 100-200 ns.
//
// It keeps addresses, for prefetching only: what lay there may be gone. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace horon {

// `kBytes`: how much lies at each of the addresses that something has.
template <size_t... kBytes>
class Foresight {
 public:
  using Addresses = std::array<const void*, sizeof...(kBytes)>;

  // It is the turn of what lies here; the first address tells it from all others.
  void Come(const Addresses& here) {
    if (at_ == kMost || (!order_.empty() && here[0] == order_[0][0])) at_ = 0;
    if (at_ == order_.size()) {
      order_.push_back(here);
    } else if (order_[at_] != here) {
      order_[at_] = here;
    }
    ++at_;
    const size_t soon = at_ + kAhead - 1;
    if (soon >= order_.size()) return;
    constexpr size_t kSizes[] = {kBytes...};
    for (size_t i = 0; i < sizeof...(kBytes); ++i) Prefetch(order_[soon][i], kSizes[i]);
  }

 private:
  // A call takes half a microsecond and more: so many of them are longer than memory takes.
  static constexpr size_t kAhead = 2, kMost = 4096;
  static void Prefetch(const void* at, size_t bytes) {
    constexpr uintptr_t kLine = 64;
    const auto begin = reinterpret_cast<uintptr_t>(at);
    for (uintptr_t line = begin & ~(kLine - 1); line < begin + bytes; line += kLine)
      __builtin_prefetch(reinterpret_cast<const void*>(line));
  }

  std::vector<Addresses> order_;  // as they came the last time; before at_, this time
  size_t at_ = 0;
};

}  // namespace horon
