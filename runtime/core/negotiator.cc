#include "runtime/core/negotiator.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "runtime/base/fault.h"
#include "runtime/base/log.h"

namespace horon {
namespace {

using std::chrono::milliseconds;

// How often a rank with nothing to report still says how far it has heard, so that the coordinator
// may forget evicted cache ids.
constexpr uint64_t kTellHeardEvery = 256;

StallLimits LimitsOf(const Config& config) {
  StallLimits limits{config.stall_warn, config.stall_shutdown, config.stall_silence};
  if (!config.stall_check) limits.warn = limits.busy = milliseconds{0};
  return limits;
}

// Counters carry the name of the way: "negotiation.shm.bits".
std::string Way(int rank, const Topology& topology, const std::vector<Transport*>& control) {
  if (topology.size() == 1) return "self";
  if (rank == 0) return std::string(control.back()->name());
  const int leader = ControlTree::LeaderOf(topology, rank);
  const bool led = topology.nodes() > 1 && leader != rank;
  return std::string(control[static_cast<size_t>(led ? leader : 0)]->name());
}

}  // namespace

Negotiator::Negotiator(const Config& config, int rank, const Topology& topology,
                       const std::vector<Transport*>& control, OpTable& ops, Registry& registry,
                       ProcessSets& sets, Callers& callers, Timeline& timeline, Counters& counters,
                       int64_t batch_bytes)
    : rank_(rank),
      tuning_(TuningOf(config)),
      registry_(&registry),
      sets_(&sets),
      size_(topology.size()),
      tree_(rank, topology, control, counters),
      schedule_(topology.size() > 1, batch_bytes),
      may_lock_(config.lock_schedule),
      reports_of_(control.size()),
      callers_(&callers),
      timeline_(&timeline),
      asker_(config, rank),
      requests_(counters["negotiation." + Way(rank, topology, control) + ".requests"]),
      bits_(counters["negotiation." + Way(rank, topology, control) + ".bits"]),
      responses_(counters["negotiation." + Way(rank, topology, control) + ".responses"]),
      cached_responses_(
          counters["negotiation." + Way(rank, topology, control) + ".cached_responses"]),
      locks_(counters["schedule.locks"]),
      locked_tensors_(counters["schedule.tensors"]),
      kept_(counters["gossip.kept"]),
      traced_(LogEnabled(LogLevel::kTrace, kLogComponent)) {
  wanted_tuning_ = tuning_;
  if (rank != 0) return;
  coordinator_ = std::make_unique<Coordinator>(size_, ops, sets, config.cache_capacity,
                                               config.gossip_time);
  judge_ = std::make_unique<StallJudge>(size_, LimitsOf(config));
}

void Negotiator::Add(std::span<Entry> entries) {
  if (entries.empty()) return;
  if (over_) {
    for (Entry& entry : entries) entry.promise.Finish(Status::Aborted(over_reason_));
    return;
  }
  for (Entry& entry : entries) {
    Registration& what = *entry.what;
    const bool scheduled = schedule_.Holds(what);
    if (!scheduled) waiting_to_report_.push_back(entry.what);
    pending_.Put(std::move(entry));
    if (scheduled) schedule_.Arrived(what);
  }
  schedule_.SawArrivals();
}

Status Negotiator::Send(horon::Report report) {
  report.number = ++reports_;
  report.heard = told_heard_ = heard_;
  moved_ = true;
  if (rank_ == 0) return HearReport(0, std::move(report));
  tree_.SendReport(Encode(report));
  return Status::Ok();
}

bool Negotiator::HasReport() const {
  if (over_) return false;
  if (schedule_.locked()) return HasLockedReport();
  return !waiting_to_report_.empty() || heard_ >= told_heard_ + kTellHeardEvery || ask_ ||
         answer_ || describe_ || timeline_->wants_clock() || !given_up_.empty() ||
         (leaving_ && !left_);
}

Status Negotiator::Report() {
  FaultPoint(FaultPhase::kNegotiate);
  horon::Report report;
  if (schedule_.locked()) {
    report.unlock = unlock_asked_ = unlock_asked_ || WantsUnlock();
    if (report.unlock && OutOfPatience()) report.uneven = schedule_.Uneven();
    report.ask = std::exchange(ask_due_, false);  // and again when all that waits is reported
    if (std::exchange(started_due_, false)) report.started = schedule_.started();
    if (report.unlock || report.started) FaultPoint(FaultPhase::kLeave);
  } else {
    ReportPending(report);
  }
  if (std::exchange(answer_, false)) {
    report.activity = callers_->Snapshot();
    callers_->inquiries()->Ask();  // for the next one
  }
  if (timeline_->wants_clock()) report.clock = timeline_->AskClock();
  report.given_up = std::exchange(given_up_, {});
  if (traced_) Trace(report);
  return Send(std::move(report));
}

void Negotiator::ReportPending(horon::Report& report) {
  for (const SharedRegistration& what : waiting_to_report_) {
    if (what->slot < 0) continue;  // failed meanwhile
    const uint64_t id = cache_.Find(what);
    if (id != 0) {
      report.bits.push_back(id);
    } else {
      report.requests.push_back(what->request);
    }
  }
  waiting_to_report_.clear();
  bits_.Add(static_cast<int64_t>(report.bits.size()));
  requests_.Add(static_cast<int64_t>(report.requests.size()));
  report.describe = std::exchange(describe_, false);
  report.ask = std::exchange(ask_, false) || report.describe;
  ask_due_ = false;
  report.leaving = leaving_;
  left_ = leaving_;
}

Result<RecycledVector<Batch>> Negotiator::Advance(bool awaited) {
  moved_ = false;
  awaited_ = awaited;
  RunSchedule();
  if (HasReport()) HORON_TRY(Report());
  HORON_TRY(tree_.Advance());
  HORON_TRY(coordinator_ ? HearReports() : HearDecisions());
  if (coordinator_) HORON_TRY(Decide());
  moved_ = tree_.moved() || moved_;
  // Nothing starts before the others can hear of it: the first bucket of a process set may block in
  // the transport until all its ranks have started it (Transport::Prepare).
  if (tree_.sending()) return RecycledVector<Batch>();
  return std::exchange(batches_, {});
}

Status Negotiator::HearDecisions() {
  while (auto next = tree_.NextDecision()) {
    if (over_) continue;  // only handed on to the node
    HORON_ASSIGN(const Decision decision, DecodeDecision(*next, size_));
    HORON_TRY(Apply(decision));
  }
  return Status::Ok();
}

bool Negotiator::HearTheLast() {
  if (coordinator_) return false;  // what it decides it applies at once
  std::ignore = tree_.HearParent();
  std::ignore = HearDecisions();
  return tree_.moved();
}

// --- stalls ----------------------------------------------------------------------------------

Status Negotiator::LookForStalls(Clock::time_point now, const StallAsker::Running& running,
                                 const Request* oldest) {
  if (judges_late()) {
    for (const std::string& late : coordinator_->JudgeLate(now))
      Log(LogLevel::kWarn, "stall", late);
    moved_ = moved_ || coordinator_->HasNews();
  }
  const bool waits = !over_ && !left_ && (!pending_.empty() || oldest != nullptr);
  if (!asker_.Due(now, waits, {0, pending_.newest()}, running)) return Status::Ok();
  const StallAsker::Pending pending{pending_.oldest(), pending_.newest()};
  const StallAsker::Advice advice = asker_.Look(now, pending, running, oldest);
  if (advice.ask) ask_ = ask_due_ = moved_ = true;
  if (advice.lost_coordinator) lost_ = 0;
  return advice.status;
}

void Negotiator::Print(const std::vector<std::string>& lines) const {
  for (const std::string& line : lines)
    std::fprintf(stderr, "horon: rank %d: %s\n", rank_, line.c_str());
}

void Negotiator::Describe(std::vector<std::string> running) {
  std::vector<std::string> lines = std::move(running);
  pending_.ForEach([&](const Entry& entry) {
    lines.push_back("tensor '" + entry.request().name +
                    "' waits until all ranks have submitted it");
  });
  if (lines.empty()) lines.push_back("no tensor waits for other ranks");
  Print(lines);
  describe_ = !over_ && !left_;
  described_ = !describe_;
}

void Negotiator::Leave() { leaving_ = true; }

void Negotiator::FailAll(const Status& status) {
  for (Batch& batch : std::exchange(batches_, {})) {  // agreed, and not started yet: see Advance
    for (Entry& entry : batch.entries) entry.promise.Finish(status);
  }
  FailPending(status);
}

void Negotiator::FailPending(const Status& status) {
  waiting_to_report_.clear();
  schedule_.Clear();
  for (Entry& entry : pending_.TakeAll()) entry.promise.Finish(status);
}

}  // namespace horon
