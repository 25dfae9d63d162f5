// Negotiator: turns entries into agreed entries. The second stage of the road.
//
// It reports what this rank has to the coordinator (a cache id where the same was agreed before),
// and gives out what the coordinator decided: the same entries, in the same order, cut into the
// same batches, on every rank. Decisions are pure and live in coordinator.h; this is the messages'
// side. Never blocks. Holder of the baton only.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/counters.h"
#include "runtime/core/control_tree.h"
#include "runtime/core/coordinator.h"
#include "runtime/core/entry.h"
#include "runtime/core/locked_schedule.h"
#include "runtime/core/pending_entries.h"
#include "runtime/core/response_cache.h"
#include "runtime/core/stall_asker.h"
#include "runtime/core/timeline.h"

namespace horon {

// Agreed together. Fusion must not look across batches: one rank may see two in one cycle that
// another sees in two.
struct Batch {
  Entries entries;
  // Before it starts, take back what the locked schedule has started beyond this many batches.
  std::optional<uint64_t> resume;
  Tuning tuning;  // under which it was agreed
};

class Negotiator {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::string_view kLogComponent = "negotiator";  // in HORON_LOG
  // `control[r]` reaches rank r, as far as the control tree needs it. `batch_bytes`: what
  // LockedSchedule takes.
  Negotiator(const Config& config, int rank, const Topology& topology,
             const std::vector<Transport*>& control, OpTable& ops, Registry& registry,
             ProcessSets& sets, Callers& callers, Timeline& timeline, Counters& counters,
             int64_t batch_bytes = 0);

  // Takes new entries, which are moved from. Those with a name that cannot be (unknown op) were
  // refused before, at submit.
  void Add(std::span<Entry> entries);
  // Sends, receives, decides. Batches in agreed order; a failure means the wire to a peer is lost.
  // `awaited`: somebody is blocked.
  Result<RecycledVector<Batch>> Advance(bool awaited = false);
  // What the executor gives back for Batch::resume: it has to be agreed again.
  void TakeBack(Entries entries);
  bool locked() const { return schedule_.locked(); }
  // How many entries must be added before there is anything to do.
  size_t wanted() const { return schedule_.wanted(); }
  // Nothing in flight may go on: some of it may have to be taken back.
  bool held() const { return held_; }

  // Looks whether something here waits in vain, and asks the coordinator why. Rank 0: whether some
  // ranks are too late for what does not wait for ever. `oldest`: a tensor of the oldest bucket in
  // flight, or null. kUnavailable: the coordinator does not answer, or that bucket never ends.
  Status LookForStalls(Clock::time_point now, const StallAsker::Running& running,
                       const Request* oldest);
  int64_t unanswered_ms() const { return asker_.unanswered_ms(); }
  Clock::time_point next_look(bool awaited) const {
    const auto look = std::min(asker_.next_look(), schedule_.patience_ends(awaited));
    return judges_late() ? std::min(look, coordinator_->late_at()) : look;
  }
  // Rank 0: what every rank's timeline is to do, at the same place in the stream of batches.
  void Order(std::vector<TimelineOrder> orders);
  // Prints what is pending here now, beside lines on what runs, and what the coordinator knows of
  // it when it has answered.
  void Describe(std::vector<std::string> running);
  // Whether a rank has left the job, as far as this one has heard.
  bool gone(int rank) const { return tree_.gone(rank); }
  // The rank that was given up; -1: none.
  int lost() const { return lost_; }

  // Tells the coordinator, and through it every rank, that this one failed and why: a sentence.
  void GiveUp(const std::string& why) { given_up_ = why; }
  // Tells the coordinator that this rank goes. Afterwards pending entries fail as the answers come.
  void Leave();
  // Everyone who must know, knows, and nothing more can be agreed with this rank. Without a
  // coordinator nobody must know.
  bool left() const { return (rank_ == 0 ? left_ : confirmed_ || over_) && !sending(); }
  // The coordinator has left: nothing can be agreed any more.
  bool over() const { return over_; }
  const std::string& over_reason() const { return over_reason_; }
  // Rank 0: batches are to be cut like this, on all ranks, as soon as they can agree on it.
  void Tune(const Tuning& wanted);
  // A rank is lost: what rank 0 decided before, and this one has still got, counts. Nothing starts.
  // Whether there was any.
  bool HearTheLast();
  // Fails everything that waits for agreement, or for its start.
  void FailAll(const Status& status);

  bool idle() const { return pending_.empty() && !sending(); }
  bool holds_batches() const { return !batches_.empty(); }  // agreed, and not given out yet
  bool moved() const { return moved_; }  // whether the last Advance did anything

 private:
  bool sending() const { return tree_.sending(); }
  bool judges_late() const { return coordinator_ != nullptr && !schedule_.locked(); }
  bool HasReport() const;
  Status Report();
  void ReportPending(horon::Report& report);
  // negotiator_locked.cc
  bool HasLockedReport() const;
  bool WantsUnlock() const;
  bool OutOfPatience() const;
  void RunSchedule();
  void ObserveSchedule(const Decision& decision);
  void Resume(uint64_t first, uint64_t uneven);
  Status DecideLocked();
  void HearLocked(int rank, horon::Report& report);
  Status Send(horon::Report report);
  Status HearReport(int rank, horon::Report report);
  void Follow(StallJudge::Findings findings);
  Status HearReports();
  Status HearDecisions();
  void LeaveWithLeader(int rank);
  Status Decide();
  Status Apply(const Decision& decision);
  void FailPending(const Status& status);
  void ApplyCached(uint64_t id, Batch& batch);
  Status ApplyVerdict(const Verdict& verdict, Batch& batch, Batch& kept);
  void Run(Entry&& entry, const Verdict& verdict, Batch& batch);
  void Run(Entry&& entry, Batch& batch);
  bool ApplyBuiltIn(const Verdict& verdict, Entry& entry);
  void ChangeSets(const Request& request, const Agreement& agreed);
  Status ApplyWithout(const Verdict& verdict, Batch& batch);
  void ApplyLeft(const Decision& decision);
  void LogKept(const Entries& kept) const;
  std::string WhyOver(int32_t gone) const;
  bool MustTell() const;
  Status Tell(Decision decision);
  void Trace(const horon::Report& report) const;  // HORON_LOG=negotiator=trace
  void Trace(const Decision& decision) const;
  void Print(const std::vector<std::string>& lines) const;

  int rank_;
  Tuning tuning_;  // of the last decision, or of rank 0 before the first
  Registry* registry_;
  ProcessSets* sets_;
  int size_;
  ControlTree tree_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0 only
  ResponseCache cache_;
  PendingEntries pending_;  // reported or about to be
  std::vector<SharedRegistration> waiting_to_report_;
  LockedSchedule schedule_;
  bool may_lock_, awaited_ = false, held_ = false;
  bool unlock_asked_ = false, started_due_ = false, others_pending_ = false;
  uint64_t heard_ = 0, told_heard_ = 0;
  RecycledVector<Batch> batches_;
  std::vector<uint64_t> reports_of_;  // rank 0: heard so far, by rank
  uint64_t reports_ = 0;              // sent so far
  Callers* callers_;
  Timeline* timeline_;
  StallAsker asker_;
  bool ask_ = false, ask_due_ = false, answer_ = false, describe_ = false, described_ = true;
  int lost_ = -1;
  // Rank 0: for the next decision.
  std::unique_ptr<StallJudge> judge_;
  bool reply_ = false, inquire_ = false, describe_when_answered_ = false;
  bool unlock_wanted_ = false;
  uint64_t uneven_ = 0;  // what a rank has said of the locked schedule's batch
  Tuning wanted_tuning_;
  std::vector<std::optional<uint64_t>> started_;  // answers to `stop`, by rank
  std::string lost_because_;
  std::deque<TimelineOrder> orders_;
  std::vector<ClockAnswer> clocks_;  // for whom has asked since the last decision
  std::vector<std::string> description_;
  std::string given_up_;
  bool leaving_ = false, left_ = false, confirmed_ = false, over_ = false, moved_ = false;
  std::string over_reason_;
  int first_gone_ = -1;  // the first rank that left the job
  Counter &requests_, &bits_, &responses_, &cached_responses_, &locks_, &locked_tensors_, &kept_;
  bool traced_;
};

}  // namespace horon
