// The futex system call, private or between processes, with a deadline. See futex(2).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace horon {

// Sleeps while *word == expected, at most `timeout`. Wakes that carry none of `bits` are not felt.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, uint32_t bits,
               std::chrono::nanoseconds timeout);
// Wakes every sleeper on `word` that listens for one of `bits`.
void FutexWake(const std::atomic<uint32_t>& word, uint32_t bits);

}  // namespace horon
