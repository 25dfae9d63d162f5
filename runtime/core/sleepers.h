// Sleepers: which threads of this process sleep until others wake them, as the kernel shows it.
//
// Of one thread at a time. Reads /proc/self/task, some 20 us a thread; blocks for nothing else.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

namespace horon {

class Sleepers {
 public:
  // Whether the thread has slept in one lock (a futex) for a while, by the looks so far.
  bool Asleep(pid_t thread);
  // Forgets what was seen of all others.
  void KeepOnly(const std::vector<pid_t>& threads);
  // Whether nothing in this process but `threads` and the calling thread may wake a sleeper: every
  // other thread sleeps in a lock itself, waits for an event loop, or is the runtime's, the CUDA
  // driver's or torch's own. A loader's that reads a file, or computes, is none of these.
  static bool OthersRest(const std::vector<pid_t>& threads);

 private:
  struct Sleep {
    uint64_t switches = 0;  // of its context, at the last look; 0: it did not sleep then
    std::chrono::steady_clock::time_point since = {};  // when they were that many first
  };
  std::map<pid_t, Sleep> sleeps_;
};

}  // namespace horon
