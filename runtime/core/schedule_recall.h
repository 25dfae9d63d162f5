// ScheduleRecall: knows the schedule that a job has just left, and sees when it has returned to it.
//
// A training job leaves its schedule for a moment whenever it reduces a metric or meets at a
// barrier. The finder would want to see several equal steps again; one is enough here. Like the
// finder it sees the same decisions on all ranks. Pure. Part of LockedSchedule; holder of the
// baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "runtime/core/schedule_finder.h"

namespace horon {

class ScheduleRecall {
 public:
  using Batches = ScheduleFinder::Batches;

  void Remember(Batches batches);
  // Its cache ids may mean other tensors from now on, or it was no good.
  void Forget() { Remember({}); }
  // Something that is in no schedule was decided.
  void Interrupt() { seen_.clear(); }

  // The cache ids that the next decision runs. The schedule, if all of it has run since the last
  // interruption, each once; it begins with the batch that came first. Else nothing.
  Batches Observe(const RecycledVector<uint64_t>& order);

 private:
  Batches batches_;
  std::unordered_map<uint64_t, size_t> batch_of_;
  std::unordered_set<uint64_t> seen_;
  size_t first_ = 0;  // the batch that came first
};

}  // namespace horon
