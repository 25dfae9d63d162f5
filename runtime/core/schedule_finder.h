// ScheduleFinder: watches the stream of decisions for a job that has become steady, where every
// step runs the same tensors, and proposes the schedule that can then run without negotiation.
//
// Every rank sees the same decisions, so every rank finds the same schedule at the same decision
// and nobody has to be told. Pure. Part of LockedSchedule; holder of the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/base/recycler.h"

namespace horon {

class ScheduleFinder {
 public:
  // What runs in a period, in order, by cache id; those of a batch become ready together.
  using Batches = std::vector<std::vector<uint64_t>>;

  // The cache ids that the next decision runs. A schedule, if the period that ends with it is as
  // long as wanted the same as those before it; else nothing.
  Batches Observe(const RecycledVector<uint64_t>& order);
  // Something else than a steady step happened.
  void Reset();

  // Equal periods in a row from which on a schedule is proposed. At least 2.
  void set_periods(int periods) { periods_ = periods; }
  int periods() const { return periods_; }

 private:
  static constexpr size_t kMost = 65536;                  // tensors of a period
  using Period = std::unordered_map<uint64_t, uint64_t>;  // id -> the decision that ran it

  void Align(size_t decided);
  void EndPeriod();
  // Whether the period now under way has the same members as the last.
  bool Same() const { return now_.size() == last_.size() && known_ == now_.size(); }
  Batches Cut() const;

  int periods_ = 3;
  uint64_t decision_ = 0;
  Period last_, now_;
  std::vector<uint64_t> order_;  // of now_
  size_t known_ = 0;             // members of now_ that are in last_
  int equal_ = 0;                // whole periods equal to the one before them
  bool whole_ = false;           // the last decision ran as many tensors as a period has
};

}  // namespace horon
