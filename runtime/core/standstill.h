// Standstill: notices that nobody runs the cycle although threads wait: its holder is stuck, in a
// call of MPI, of the CUDA driver, in a debugger. Pure: it is told what shared words hold. Of the
// watch thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/core/activity.h"

namespace horon {

class Standstill {
 public:
  using Clock = std::chrono::steady_clock;
  struct Look {
    uint64_t cycles = 0;  // run so far
    bool awaited = false;
    Clock::time_point now;
  };

  // Speaks before the others give this rank up for its silence; 0: they never do.
  explicit Standstill(std::chrono::milliseconds silence);
  // A third of that, as the watch thread may come late.
  static std::chrono::milliseconds Patience(std::chrono::milliseconds silence);

  // Afterwards standing_for() is how long nothing has moved. Whether a sleeper has to be woken, who
  // then runs the cycle and is not taken for a stuck one.
  bool See(const Look& look);
  std::chrono::milliseconds standing_for() const { return standing_; }
  // Whether it is time to say so, at once if that is `urgent`; true once for each standstill.
  bool MustSay(bool urgent = false);
  // When to look again.
  std::chrono::milliseconds next() const;

 private:
  std::chrono::milliseconds patience_, standing_{0};
  Clock::time_point since_;
  uint64_t cycles_ = 0;
  bool awaited_ = false, said_ = false;
};

// What the kernel shows of a thread of this process: its name, its state, and where it sleeps.
std::string KernelsView(int thread);
// One sentence: for how long, which thread, what the kernel says it does, what the program waits
// for and has submitted last.
std::string DescribeStandstill(std::chrono::milliseconds standing, int thread,
                               const Activity& activity);

}  // namespace horon
