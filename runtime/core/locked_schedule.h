// LockedSchedule: what a steady job runs, over and over, without negotiation: batches of tensors in
// an order that every rank knows. A batch starts as soon as this rank has submitted all of it.
//
// What was agreed together is in one batch; batches of one op that follow each other are put
// together until they are as large as it pays to wake somebody for. That is a guess: a rank may
// wait for the one before it submits the other. Such a rank says so (Uneven), and they are apart
// from then on.
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
#include <optional>
#include <unordered_set>
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

  // `possible`: whether there are others to agree with. `batch_bytes`: the same on all ranks.
  explicit LockedSchedule(bool possible, int64_t batch_bytes = 0)
      : possible_(possible), batch_bytes_(batch_bytes) {}

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
  void Observe(uint64_t sequence, const RecycledVector<uint64_t>& order, bool plain, bool allowed,
               ResponseCache& cache);
  // Cache ids were taken from their tensors.
  void ForgetIds() {
    recall_.Forget();
    apart_.clear();
  }
  // An entry of the schedule is pending now; SawArrivals follows.
  void Arrived(const Registration& what);
  void SawArrivals();
  // The next batch, if all of it is pending: to be started now.
  const std::vector<Item>* Next();

  // When a rank whose next batch stays incomplete gives up hoping for the rest of it; max: it has
  // no reason to. `awaited`: somebody is blocked.
  Clock::time_point patience_ends(bool awaited) const;
  // Of the next batch, if one part of it is pending and another is not: the tensor (its cache id)
  // before which it should be cut. 0: there is no such place.
  uint64_t Uneven() const;

  void Stop() { stopped_ = true; }
  // Negotiation goes on; batches from `first` on were not started. `uneven`: what a rank has found.
  void Unlock(uint64_t first, uint64_t uneven = 0);
  // Its tensors, in order.
  std::vector<SharedRegistration> Members() const;
  // The runtime fails: whatever was scheduled is void.
  void Clear();

 private:
  static constexpr int kMostGuesses = 16;

  void Lock(uint64_t sequence, ScheduleFinder::Batches parts, ResponseCache& cache);
  bool Fits(const ResponseCache::Line& line) const;

  bool possible_;
  int64_t batch_bytes_;
  ScheduleFinder finder_;
  ScheduleRecall recall_;
  ScheduleFinder::Batches parts_;           // by cache id; each was agreed together
  std::unordered_set<uint64_t> apart_;      // first ids of parts that are in no batch with the last
  int guesses_ = kMostGuesses;              // how many more may be wrong
  std::vector<std::vector<Item>> batches_;  // of parts
  std::vector<size_t> first_part_;          // by batch, and one behind the last
  std::vector<size_t> missing_;  // by batch: members that are not pending
  size_t next_ = 0;              // the batch that starts next
  uint64_t since_ = 0, plan_ = 0, started_ = 0, locked_at_ = 0;
  size_t waiting_ = 0;  // members that are pending
  Clock::time_point waiting_since_;  // the last of them
  bool stopped_ = false;
};

}  // namespace horon
