#include "runtime/core/negotiator.h"

#include <algorithm>
#include <cstdio>

#include "runtime/base/fault.h"
#include "runtime/base/log.h"

namespace horon {
namespace {

using std::chrono::milliseconds;

// How often a rank with nothing to report still says how far it has heard, so that the coordinator
// may forget evicted cache ids.
constexpr uint64_t kTellHeardEvery = 256;

constexpr std::string_view kComponent = "negotiator";  // in HORON_LOG

StallLimits LimitsOf(const Config& config) {
  StallLimits limits{config.stall_warn, config.stall_shutdown, config.stall_silence};
  if (!config.stall_check) limits.warn = limits.busy = milliseconds{0};
  return limits;
}

bool Contains(const std::vector<int32_t>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

void Print(int rank, const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    std::fprintf(stderr, "horon: rank %d: %s\n", rank, line.c_str());
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
                       ProcessSets& sets, Callers& callers, bool may_lock, Counters& counters)
    : rank_(rank),
      fusion_bytes_(config.fusion_bytes),
      registry_(&registry),
      sets_(&sets),
      size_(topology.size()),
      tree_(rank, topology, control, counters),
      schedule_(may_lock),
      may_lock_(config.lock_schedule),
      reports_of_(control.size()),
      callers_(&callers),
      asker_(config, rank),
      requests_(counters["negotiation." + Way(rank, topology, control) + ".requests"]),
      bits_(counters["negotiation." + Way(rank, topology, control) + ".bits"]),
      responses_(counters["negotiation." + Way(rank, topology, control) + ".responses"]),
      cached_responses_(
          counters["negotiation." + Way(rank, topology, control) + ".cached_responses"]),
      locks_(counters["schedule.locks"]),
      locked_tensors_(counters["schedule.tensors"]),
      traced_(LogEnabled(LogLevel::kTrace, kComponent)) {
  if (rank != 0) return;
  coordinator_ = std::make_unique<Coordinator>(size_, ops, sets, config.cache_capacity);
  judge_ = std::make_unique<StallJudge>(size_, LimitsOf(config));
}

void Negotiator::Add(std::vector<Entry> entries) {
  if (entries.empty()) return;
  if (over_) {
    for (Entry& entry : entries) entry.promise.Finish(Status::Aborted(over_reason_));
    return;
  }
  for (Entry& entry : entries) {
    const SharedRegistration what = entry.what;
    pending_.Put(std::move(entry));
    if (schedule_.Holds(*what)) {
      schedule_.Arrived(*what);
    } else {
      waiting_to_report_.push_back(what);
    }
  }
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
         answer_ || describe_ || !given_up_.empty() || (leaving_ && !left_);
}

Status Negotiator::Report() {
  FaultPoint(FaultPhase::kNegotiate);
  horon::Report report;
  if (schedule_.locked()) {
    report.unlock = unlock_asked_ = unlock_asked_ || WantsUnlock();
    if (std::exchange(started_due_, false)) report.started = schedule_.started();
  } else {
    ReportPending(report);
  }
  if (std::exchange(answer_, false)) report.activity = callers_->Snapshot();
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
  report.leaving = leaving_;
  left_ = leaving_;
}

Result<std::vector<Batch>> Negotiator::Advance(bool awaited) {
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
  if (tree_.sending()) return std::vector<Batch>();
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

Status Negotiator::Apply(const Decision& decision) {
  if (decision.sequence != heard_ + 1) {
    return Status::Internal("decision " + std::to_string(decision.sequence) + " came after " +
                            std::to_string(heard_));
  }
  heard_ = decision.sequence;
  if (traced_) Trace(decision);
  lost_ = decision.lost;
  if (lost_ >= 0) return Status::Unavailable(decision.lost_because);
  fusion_bytes_ = decision.fusion_bytes;
  if (decision.stop) {
    schedule_.Stop();
    held_ = started_due_ = true;
  }
  if (decision.resume) Resume(*decision.resume);
  Batch batch;
  auto verdict = decision.verdicts.begin();
  for (uint64_t id : decision.order) {
    if (id != 0) {
      ApplyCached(id, batch);
    } else if (verdict != decision.verdicts.end()) {
      HORON_TRY(ApplyVerdict(*verdict++, batch));
    }
  }
  for (uint64_t id : decision.evicted) cache_.Forget(id);
  if (!decision.order.empty()) ++agreed_;
  if (!batch.entries.empty()) batches_.push_back(std::move(batch));
  ApplyLeft(decision);
  ObserveSchedule(decision);
  asker_.Answered();
  answer_ = answer_ || decision.inquire;
  if (!decision.description.empty() && std::exchange(described_, true) == false)
    Print(rank_, decision.description);
  return Status::Ok();
}

void Negotiator::Trace(const horon::Report& report) const {
  Log(LogLevel::kTrace, kComponent,
      "report " + std::to_string(reports_ + 1) + ": " + std::to_string(report.bits.size()) +
          " known, " + std::to_string(report.requests.size()) + " new" +
          (report.requests.empty() ? "" : " (first '" + report.requests[0].name + "')") +
          (report.leaving ? ", leaving" : "") + (report.ask ? ", asks" : ""));
}

void Negotiator::Trace(const Decision& decision) const {
  Log(LogLevel::kTrace, kComponent,
      "decision " + std::to_string(decision.sequence) + ": " +
          std::to_string(decision.order.size()) + " tensors, " +
          std::to_string(decision.verdicts.size()) + " of them for the first time, " +
          std::to_string(decision.left.size()) + " ranks left" +
          (decision.lost < 0 ? "" : ", lost: " + decision.lost_because));
}

void Negotiator::ApplyCached(uint64_t id, Batch& batch) {
  const ResponseCache::Line* const line = cache_.Get(id);
  if (line == nullptr) return;  // of a set that I am not in
  cached_responses_.Add();
  std::optional<Entry> entry = pending_.Take(*line->what);
  if (!entry) return;
  entry->agreed = line->agreed;
  Run(std::move(*entry), batch);
}

Status Negotiator::ApplyVerdict(const Verdict& verdict, Batch& batch) {
  if (verdict.only_rank >= 0 && verdict.only_rank != rank_) return Status::Ok();
  if (Contains(verdict.joined, rank_)) return ApplyWithout(verdict, batch);
  const SharedRegistration what = registry_->Find(verdict.process_set, verdict.name);
  if (!what) return Status::Ok();  // of a set that I am not in
  responses_.Add();
  std::optional<Entry> entry = pending_.Take(*what);
  if (!entry) return Status::Ok();
  if (!verdict.status.ok()) {
    entry->promise.Finish(verdict.status);
    return Status::Ok();
  }
  if (ApplyBuiltIn(verdict, *entry)) return Status::Ok();
  if (verdict.cache_id != 0) cache_.Remember(verdict.cache_id, what, verdict.agreed);
  Run(std::move(*entry), verdict, batch);
  return Status::Ok();
}

// My part of what runs on ranks that have not asked for it.
Status Negotiator::ApplyWithout(const Verdict& verdict, Batch& batch) {
  if (IsBuiltIn(verdict.stand_in.op)) {
    ChangeSets(verdict.stand_in, verdict.agreed);
    return Status::Ok();
  }
  Entry entry;
  HORON_ASSIGN(entry.what, registry_->Unlisted(verdict.stand_in));
  entry.promise = Promise(std::make_shared<Work>(1), 0, nullptr);
  Run(std::move(entry), verdict, batch);
  return Status::Ok();
}

void Negotiator::Run(Entry entry, const Verdict& verdict, Batch& batch) {
  entry.agreed = verdict.agreed;
  const bool away = entry.what->op->when_joined() == WhenJoined::kAway;
  if (away) entry.agreed.away.assign(verdict.joined.begin(), verdict.joined.end());
  Run(std::move(entry), batch);
}

void Negotiator::Run(Entry entry, Batch& batch) {
  // Before a later verdict removes the set.
  entry.ranks = sets_->Find(entry.request().process_set);
  batch.entries.push_back(std::move(entry));
}

// What the runtime does by itself.
bool Negotiator::ApplyBuiltIn(const Verdict& verdict, Entry& entry) {
  if (!IsBuiltIn(entry.request().op)) return false;
  ChangeSets(entry.request(), verdict.agreed);
  // The process set; of a join the rank that joined last.
  entry.promise.output().received_splits = verdict.agreed.sizes;
  entry.promise.Finish(Status::Ok());
  return true;
}

// At the same place in every rank's stream of decisions.
void Negotiator::ChangeSets(const Request& request, const Agreement& agreed) {
  const auto id = static_cast<int32_t>(agreed.sizes.empty() ? -1 : agreed.sizes[0]);
  if (request.op == "process_set.remove") {
    sets_->Remove(id);
    cache_.ForgetSet(id);
  } else if (request.op != "join" && !sets_->Find(id)) {
    sets_->Add(id, std::vector<int>(request.splits.begin(), request.splits.end()));
  }
}

void Negotiator::ApplyLeft(const Decision& decision) {
  for (int32_t rank : decision.left) {
    tree_.Gone(rank);  // this decision was its last
    if (rank == rank_) confirmed_ = true;
    const bool with_leader = rank == rank_ && !leaving_;
    if (over_ || (rank != 0 && !with_leader)) continue;
    over_ = true;
    over_reason_ = rank_ == 0 ? "this rank has left the job"
                   : rank == 0
                       ? "rank 0 has left the job (it called shutdown or its program ended)"
                       : "the first rank of this node, which negotiates for it, has left the job "
                         "(it called shutdown or its program ended)";
    FailAll(Status::Aborted(over_reason_));
  }
}

// --- stalls ----------------------------------------------------------------------------------

Status Negotiator::LookForStalls(Clock::time_point now, const Request* running, uint64_t finished) {
  const bool waits = !over_ && !left_ && (!pending_.empty() || running != nullptr);
  const StallAsker::Advice advice = asker_.Look(now, waits, running, agreed_ + finished);
  if (advice.ask) ask_ = moved_ = true;
  if (advice.lost_coordinator) lost_ = 0;
  return advice.status;
}

void Negotiator::Describe() {
  std::vector<std::string> lines;
  pending_.ForEach([&](const Entry& entry) {
    lines.push_back("tensor '" + entry.request().name +
                    "' waits until all ranks have submitted it");
  });
  if (lines.empty()) lines.push_back("no tensor waits for other ranks");
  Print(rank_, lines);
  describe_ = !over_ && !left_;
  described_ = !describe_;
}

void Negotiator::Leave() { leaving_ = true; }

void Negotiator::FailAll(const Status& status) {
  waiting_to_report_.clear();
  schedule_.Clear();
  for (Entry& entry : pending_.TakeAll()) entry.promise.Finish(status);
}

}  // namespace horon
