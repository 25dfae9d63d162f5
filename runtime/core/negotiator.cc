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

// A rank that waits asks after a moment, then less and less often.
constexpr milliseconds kFirstLook{500}, kLastLook{10000};

StallLimits LimitsOf(const Config& config) {
  StallLimits limits{config.stall_warn, config.stall_shutdown, config.stall_silence};
  if (!config.stall_check) limits.warn = limits.busy = milliseconds{0};
  return limits;
}

std::string Seconds(milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

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
                       const std::vector<Transport*>& control, OpTable& ops, ProcessSets& sets,
                       Callers& callers, Counters& counters)
    : rank_(rank),
      fusion_bytes_(config.fusion_bytes),
      ops_(&ops),
      sets_(&sets),
      size_(topology.size()),
      tree_(rank, topology, control, counters),
      reports_of_(control.size()),
      callers_(&callers),
      silent_limit_(config.stall_silence),
      busy_limit_(config.stall_shutdown),
      requests_(counters["negotiation." + Way(rank, topology, control) + ".requests"]),
      bits_(counters["negotiation." + Way(rank, topology, control) + ".bits"]),
      responses_(counters["negotiation." + Way(rank, topology, control) + ".responses"]),
      cached_responses_(
          counters["negotiation." + Way(rank, topology, control) + ".cached_responses"]) {
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
    std::string key = entry.key();
    waiting_to_report_.push_back(key);
    pending_.insert_or_assign(std::move(key), std::move(entry));
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
  return !waiting_to_report_.empty() || heard_ >= told_heard_ + kTellHeardEvery || ask_ ||
         answer_ || describe_ || !given_up_.empty() || (leaving_ && !left_);
}

Status Negotiator::Report() {
  FaultPoint(FaultPhase::kNegotiate);
  horon::Report report;
  for (const std::string& key : std::exchange(waiting_to_report_, {})) {
    const auto it = pending_.find(key);
    if (it == pending_.end()) continue;  // failed meanwhile
    const uint64_t id = cache_.Find(key, it->second.request);
    if (id != 0) {
      report.bits.push_back(id);
    } else {
      report.requests.push_back(it->second.request);
    }
  }
  bits_.Add(static_cast<int64_t>(report.bits.size()));
  requests_.Add(static_cast<int64_t>(report.requests.size()));
  report.describe = std::exchange(describe_, false);
  report.ask = std::exchange(ask_, false) || report.describe;
  if (std::exchange(answer_, false)) report.activity = callers_->Snapshot();
  report.given_up = std::exchange(given_up_, {});
  report.leaving = leaving_;
  left_ = leaving_;
  return Send(std::move(report));
}

Result<std::vector<Batch>> Negotiator::Advance() {
  moved_ = false;
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

Status Negotiator::HearReports() {
  while (auto next = tree_.NextReport()) {
    const int rank = next->first;
    HORON_ASSIGN(horon::Report report, DecodeReport(next->second));
    const bool leaving = report.leaving;
    HORON_TRY(HearReport(rank, std::move(report)));
    if (leaving && tree_.leads(rank)) LeaveWithLeader(rank);
  }
  return Status::Ok();
}

// The node of a leader that leaves cannot be reached any more.
void Negotiator::LeaveWithLeader(int leader) {
  for (int rank : tree_.NodeOf(leader)) {
    if (rank == leader) continue;
    coordinator_->Leave(rank);
    judge_->Left(rank);
  }
}

Status Negotiator::HearDecisions() {
  while (auto next = tree_.NextDecision()) {
    if (over_) continue;  // only handed on to the node
    HORON_ASSIGN(const Decision decision, DecodeDecision(*next, size_));
    HORON_TRY(Apply(decision));
  }
  return Status::Ok();
}

// Rank 0: what a rank reports goes to the coordinator, what it asks and answers to the judge.
Status Negotiator::HearReport(int rank, horon::Report report) {
  const uint64_t expected = ++reports_of_[static_cast<size_t>(rank)];
  if (report.number != expected) {
    return Status::Internal("report " + std::to_string(expected) + " of rank " +
                            std::to_string(rank) + " was lost on the way: number " +
                            std::to_string(report.number) + " came in its place");
  }
  const Clock::time_point now = Clock::now();
  coordinator_->SetTime(now);
  const bool ask = report.ask, describe = report.describe;
  if (report.leaving) judge_->Left(rank);
  if (!report.given_up.empty()) {
    lost_ = rank;
    lost_because_ = report.given_up;
  }
  const std::optional<Activity> activity = std::exchange(report.activity, std::nullopt);
  HORON_TRY(coordinator_->Hear(rank, std::move(report)));
  if (activity) Follow(judge_->Answered(rank, *activity, now, coordinator_->Pending()));
  reply_ = reply_ || ask;  // whoever asks must hear that rank 0 is there
  if (ask) Follow(judge_->Asked(now, coordinator_->Pending()));
  const bool again = describe && std::exchange(describe_when_answered_, true);
  if (!describe_when_answered_ || (!judge_->complete() && !again)) return Status::Ok();
  describe_when_answered_ = false;
  for (const PendingTensor& tensor : coordinator_->Pending())
    description_.push_back(DescribePending(tensor, judge_->activity(), now));
  if (description_.empty()) description_.push_back("nothing waits for a rank to submit it");
  return Status::Ok();
}

void Negotiator::Follow(StallJudge::Findings findings) {
  inquire_ = inquire_ || findings.inquire;
  for (const auto& [key, status] : findings.failed) coordinator_->GiveUp(key, status);
  for (const std::string& warning : findings.warnings) Log(LogLevel::kWarn, "stall", warning);
  if (findings.lost < 0) return;
  lost_ = findings.lost;
  lost_because_ = findings.lost_because;
}

Status Negotiator::Decide() {
  const bool more = std::exchange(reply_, false) || !lost_because_.empty() || !description_.empty();
  if (!more && !coordinator_->HasNews()) return Status::Ok();
  Decision decision = coordinator_->Decide(more);
  decision.fusion_bytes = fusion_bytes_;
  decision.inquire = std::exchange(inquire_, false);
  decision.description = std::exchange(description_, {});
  decision.lost_because = std::exchange(lost_because_, {});
  if (!decision.lost_because.empty()) decision.lost = lost_;
  HORON_TRY(tree_.SendDecision(Encode(decision)));
  moved_ = true;
  return Apply(decision);
}

Status Negotiator::Apply(const Decision& decision) {
  if (decision.sequence != heard_ + 1) {
    return Status::Internal("decision " + std::to_string(decision.sequence) + " came after " +
                            std::to_string(heard_));
  }
  heard_ = decision.sequence;
  lost_ = decision.lost;
  if (lost_ >= 0) return Status::Unavailable(decision.lost_because);
  fusion_bytes_ = decision.fusion_bytes;
  Batch batch;
  for (const Verdict& verdict : decision.verdicts) ApplyVerdict(verdict, batch);
  for (uint64_t id : decision.evicted) cache_.Forget(id);
  if (!decision.verdicts.empty()) ++agreed_;
  if (!batch.empty()) batches_.push_back(std::move(batch));
  ApplyLeft(decision);
  asked_since_ = Clock::time_point::max();
  answer_ = answer_ || decision.inquire;
  if (!decision.description.empty() && std::exchange(described_, true) == false)
    Print(rank_, decision.description);
  return Status::Ok();
}

void Negotiator::ApplyVerdict(const Verdict& verdict, Batch& batch) {
  if (verdict.only_rank >= 0 && verdict.only_rank != rank_) return;
  const ResponseCache::Line* line = verdict.name.empty() ? cache_.Get(verdict.cache_id) : nullptr;
  if (verdict.name.empty() && line == nullptr) return;  // of a set that I am not in
  (line != nullptr ? cached_responses_ : responses_).Add();
  const auto it =
      pending_.find(line != nullptr ? line->key : KeyOf(verdict.process_set, verdict.name));
  if (it == pending_.end()) return;
  Entry entry = std::move(it->second);
  pending_.erase(it);
  if (!verdict.status.ok()) {
    entry.promise.Finish(verdict.status);
    return;
  }
  entry.agreed = line != nullptr ? line->agreed : verdict.agreed;
  if (ApplyMembership(verdict, entry)) return;
  if (line == nullptr && verdict.cache_id != 0) {
    cache_.Remember(verdict.cache_id, entry.key(), entry.request, entry.agreed);
  }
  const auto op = ops_->Find(entry.request.op);
  if (!op.ok()) {
    entry.promise.Finish(op.status());
    return;
  }
  entry.op = op.value();
  entry.ranks = sets_->Find(entry.request.process_set);  // before a later verdict removes the set
  batch.push_back(std::move(entry));
}

// Process sets change here, at the same place in every rank's stream of decisions.
bool Negotiator::ApplyMembership(const Verdict& verdict, Entry& entry) {
  const bool add = entry.request.op == "process_set.add";
  if (!add && entry.request.op != "process_set.remove") return false;
  const auto id = static_cast<int32_t>(verdict.agreed.sizes.empty() ? -1 : verdict.agreed.sizes[0]);
  if (add) {
    sets_->Add(id, std::vector<int>(entry.request.splits.begin(), entry.request.splits.end()));
  } else {
    sets_->Remove(id);
    cache_.ForgetSet(id);
  }
  entry.promise.output().received_splits = {id};
  entry.promise.Finish(Status::Ok());
  return true;
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
  if (over_ || left_ || (pending_.empty() && running == nullptr)) {
    look_at_ = asked_since_ = Clock::time_point::max();
    return Status::Ok();
  }
  if (look_at_ != Clock::time_point::max() && now < look_at_) return Status::Ok();
  const bool first = look_at_ == Clock::time_point::max() || agreed_ + finished != progress_;
  progress_ = agreed_ + finished;
  look_after_ = first ? kFirstLook : std::min(look_after_ + look_after_ / 2, kLastLook);
  look_at_ = now + look_after_;
  if (first) {
    still_since_ = now;
    return Status::Ok();
  }
  ask_ = moved_ = true;
  if (asked_since_ == Clock::time_point::max()) asked_since_ = now;
  const auto over = [](milliseconds limit, auto time) {
    return limit.count() > 0 && time >= limit;
  };
  if (rank_ != 0 && over(silent_limit_, now - asked_since_)) {
    lost_ = 0;
    return Status::Unavailable("rank 0 has not answered for " + Seconds(silent_limit_) +
                               ": it is stopped (SIGSTOP, a debugger), or its machine hangs or "
                               "cannot be reached");
  }
  if (running != nullptr && over(busy_limit_, now - still_since_)) {
    return Status::Unavailable("the collective of tensor '" + running->name +
                               "' has made no progress for " + Seconds(busy_limit_) +
                               " (HORON_STALL_SHUTDOWN_TIME_SECONDS)");
  }
  return Status::Ok();
}

void Negotiator::Describe() {
  std::vector<std::string> lines;
  for (const auto& [key, entry] : pending_)
    lines.push_back("tensor '" + entry.request.name + "' waits until all ranks have submitted it");
  if (lines.empty()) lines.push_back("no tensor waits for other ranks");
  Print(rank_, lines);
  describe_ = !over_ && !left_;
  described_ = !describe_;
}

void Negotiator::Leave() { leaving_ = true; }

void Negotiator::FailAll(const Status& status) {
  waiting_to_report_.clear();
  auto pending = std::exchange(pending_, {});
  for (auto& [key, entry] : pending) entry.promise.Finish(status);
}

}  // namespace horon
