// TimelineOrder: to begin or to end a timeline, as rank 0 tells it to all ranks. Plain.
#pragma once

#include <cstdint>
#include <string>

namespace horon {

struct TimelineOrder {
  uint64_t number = 0;  // 1, 2, ... of the job
  bool begin = false;   // else: end
  bool mark_cycles = false;
  uint64_t first_step = 0, end_step = UINT64_MAX;  // those from first_step on, before end_step
  std::string path;                                // absolute
  std::string id;                                  // of the file
  int64_t epoch = 0;                               // rank 0's steady clock, ns: time 0
  int64_t epoch_us = 0;                            // the same, since 1970, in us

  bool operator==(const TimelineOrder&) const = default;
};

// A rank's question what rank 0's clock says, and the answer.
struct ClockAnswer {
  int32_t rank = 0;
  int64_t asked = 0;  // by the rank's clock
  int64_t heard = 0;  // by rank 0's

  bool operator==(const ClockAnswer&) const = default;
};

}  // namespace horon
