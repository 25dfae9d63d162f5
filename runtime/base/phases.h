// Phases: when the bytes of one bucket were packed, travelled and were unpacked.
//
// Filled by whoever moves them (Lane, Slices; of an op that sends by itself, its communicator and
// the executor) while a timeline is recorded or time is to be explained, and read by the executor
// when the bucket is finished. All times are of the steady clock, in ns. Holder of the baton.
#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/base/time_use.h"

namespace horon {

inline int64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Phases {
  int64_t begun = 0;    // its turn came
  int64_t met = 0;      // all ranks had begun with it
  int64_t sent = 0;     // its first bytes were handed to the others
  int64_t arrived = 0;  // the last bytes that it needs had come
  // Spent on it in all, also while other bytes of the bucket travelled.
  int64_t packing = 0, reducing = 0, unpacking = 0;

  TimeUse* use = nullptr;  // to be told, unless null

  void Begin() {
    begun = SteadyNow();
    if (use != nullptr) use->See(TimeUse::Stage::kOthers);
  }
  void Met() {
    met = SteadyNow();
    if (use != nullptr) use->See(TimeUse::Stage::kMoving);
  }
  void Sent() {
    if (sent == 0) sent = SteadyNow();
  }
  void Arrived() { arrived = SteadyNow(); }  // the last call counts
};

// Adds the time for which it lives; nothing without phases.
class PhaseTimer {
 public:
  PhaseTimer(Phases* phases, int64_t Phases::* total)
      : total_(phases != nullptr ? &(phases->*total) : nullptr),
        begun_(phases != nullptr ? SteadyNow() : 0) {}
  ~PhaseTimer() {
    if (total_ != nullptr) *total_ += SteadyNow() - begun_;
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  int64_t* total_;
  int64_t begun_;
};

}  // namespace horon
