// Whereabouts: where a thread of a rank ran and when, in one word that its node can read.
//
// Whoever writes one does so for its own rank; any thread reads. What core/spread.h goes by.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>

namespace horon {

// The time is of the node's steady clock.
struct Whereabouts {
  static constexpr std::chrono::milliseconds kFresh{4};
  int core = -1;       // -1: not known
  bool stays = false;  // it is bound to that core, or does not wait for anybody
  std::chrono::steady_clock::time_point at;

  // Of this thread. core is -1 where that is not known, or beyond what a cpu_set_t has room for.
  static Whereabouts Here(bool stays, std::chrono::steady_clock::time_point now) {
    const int core = sched_getcpu();
    return {core < CPU_SETSIZE ? core : -1, stays, now};
  }

  // Whether it is known, and of now: it is not where two clocks differ.
  bool fresh(std::chrono::steady_clock::time_point now) const {
    return core >= 0 && core < CPU_SETSIZE && std::chrono::abs(now - at) <= kFresh;
  }

  // Microseconds, whether it stays, and the core in the lowest bits; 0 where that is not known.
  uint64_t Packed() const {
    if (core < 0) return 0;
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch());
    return static_cast<uint64_t>(us.count()) << (kCoreBits + 1) | (stays ? kStays : 0) |
           static_cast<uint64_t>(core);
  }
  static Whereabouts Of(uint64_t packed) {
    if (packed == 0) return {};
    const std::chrono::microseconds us(packed >> (kCoreBits + 1));
    return {static_cast<int>(packed & (kStays - 1)), (packed & kStays) != 0,
            std::chrono::steady_clock::time_point(us)};
  }

 private:
  static constexpr int kCoreBits = 13;
  static constexpr uint64_t kStays = uint64_t{1} << kCoreBits;
};

}  // namespace horon
