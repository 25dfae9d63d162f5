// LockedSchedule: what a steady job runs, over and over, without negotiation: batches of tensors in
// an order that every rank knows. A batch starts as soon as this rank has submitted all of it.
//
// It is entered at a decision (schedule_finder.h) and left at one: a rank that wants anything else
// asks rank 0 to unlock; rank 0 stops everybody; all say how many batches they have started; and
// rank 0 resumes negotiation after the last batch that all have started. What some have started
// beyond it is taken back: no rank has written to a tensor of a batch that not all have started.
//
// Ops that can be taken back (Op::lockable) of the global process set only. That all have started
// a batch is shown by the ranks' lane inside one node, by the executor's StartGate otherwise. Part
// of the negotiator; holder of the baton.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "runtime/core/pending_entries.h"
#include "runtime/core/response_cache.h"
#include "runtime/core/schedule_finder.h"
#include "runtime/core/schedule_recall.h"

namespace horon {

class LockedSchedule {
 public:
  using Clock = std::chrono::steady_clock;
  struct Item {
    SharedRegistration what;
    Agreement agreed;
  };

  // `possible`: whether there are others to agree with.
  explicit LockedSchedule(bool possible) : possible_(possible) {}

  bool locked() const { return !batches_.empty(); }
  bool stopped() const { return stopped_; }
  // The decision since which it is locked.
  uint64_t since() const { return since_; }
  // Batches started since the job began: the same number is the same batch on all ranks.
  uint64_t started() const { return started_; }
  // The last of them.
  Locked last() const { return {since_, plan_, started_}; }
  bool Holds(const Registration& what) const {
    return what.batch.load(std::memory_order_relaxed) >= 0;
  }
  // How many more entries must come before there is anything to do: what the next batch lacks. 1 if
  // nothing is locked, and for the first of them, whose waiting must be noticed.
  size_t wanted() const { return !locked() || stopped_ || waiting_ == 0 ? 1 : missing_[next_]; }

  // A decision ran these cache ids (0: not from the cache), and nothing else happened in it iff
  // `plain`. `allowed`: rank 0 wants schedules. Locks it when that makes the job steady.
  void Observe(uint64_t sequence, const std::vector<uint64_t>& order, bool plain, bool allowed,
               ResponseCache& cache);
  // Cache ids were taken from their tensors.
  void ForgetIds() { recall_.Forget(); }
  // An entry of the schedule is pending now.
  void Arrived(const Registration& what);
  // The next batch, if all of it is pending: to be started now.
  const std::vector<Item>* Next();

  // When a rank whose next batch stays incomplete gives up hoping for the rest of it; max: it has
  // no reason to. `awaited`: somebody is blocked.
  Clock::time_point patience_ends(bool awaited) const;

  void Stop() { stopped_ = true; }
  // Negotiation goes on; batches from `first` on were not started.
  void Unlock(uint64_t first);
  // Its tensors, in order.
  std::vector<SharedRegistration> Members() const;
  // The runtime fails: whatever was scheduled is void.
  void Clear();

 private:
  void Lock(uint64_t sequence, ScheduleFinder::Batches batches, ResponseCache& cache);
  bool Fits(const ResponseCache::Line& line) const;

  bool possible_;
  ScheduleFinder finder_;
  ScheduleRecall recall_;
  ScheduleFinder::Batches ids_;  // of batches_
  std::vector<std::vector<Item>> batches_;
  std::vector<size_t> missing_;  // by batch: members that are not pending
  size_t next_ = 0;              // the batch that starts next
  uint64_t since_ = 0, plan_ = 0, started_ = 0, locked_at_ = 0;
  size_t waiting_ = 0;  // members that are pending
  Clock::time_point waiting_since_;
  bool stopped_ = false;
};

}  // namespace horon
