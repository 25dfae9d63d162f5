#include "runtime/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace horon {

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, uint32_t bits,
               std::chrono::nanoseconds timeout) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // FUTEX_WAIT_BITSET takes an absolute time
  const int64_t nanos = now.tv_nsec + timeout.count();
  const timespec until{now.tv_sec + nanos / 1000000000, nanos % 1000000000};
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT_BITSET, expected, &until,
          nullptr, bits);
}

void FutexWake(const std::atomic<uint32_t>& word, uint32_t bits) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE_BITSET, INT_MAX, nullptr,
          nullptr, bits);
}

}  // namespace horon
