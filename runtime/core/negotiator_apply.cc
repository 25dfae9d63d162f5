// What a decision does on every rank, in the order in which the coordinator put it.
#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/core/negotiator.h"

namespace horon {
namespace {

bool Contains(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

}  // namespace

Status Negotiator::Apply(const Decision& decision) {
  if (decision.sequence != heard_ + 1) {
    return Status::Internal("decision " + std::to_string(decision.sequence) + " came after " +
                            std::to_string(heard_));
  }
  heard_ = decision.sequence;
  if (traced_) Trace(decision);
  lost_ = decision.lost;
  if (lost_ >= 0) return Status::Unavailable(decision.lost_because);
  tuning_ = decision.tuning;
  if (decision.timeline) timeline_->Obey(*decision.timeline);
  for (const ClockAnswer& answer : decision.clocks)
    timeline_->HearClock(answer, decision.clock_told);
  if (decision.stop) {
    schedule_.Stop();
    held_ = started_due_ = true;
  }
  if (decision.resume) Resume(*decision.resume, decision.uneven);
  Batch batch{{}, {}, tuning_}, kept{{}, {}, tuning_};
  auto verdict = decision.verdicts.begin();
  for (uint64_t id : decision.order) {
    if (id != 0) {
      ApplyCached(id, batch);
    } else if (verdict != decision.verdicts.end()) {
      HORON_TRY(ApplyVerdict(*verdict++, batch, kept));
    }
  }
  for (uint64_t id : decision.evicted) cache_.Forget(id);
  if (!batch.entries.empty()) batches_.push_back(std::move(batch));
  // Not in that batch, which is the same on all ranks.
  if (!kept.entries.empty()) {
    LogKept(kept.entries);
    batches_.push_back(std::move(kept));
  }
  ApplyLeft(decision);
  ObserveSchedule(decision);
  asker_.Answered();
  answer_ = answer_ || decision.inquire;
  if (!decision.description.empty() && std::exchange(described_, true) == false)
    Print(decision.description);
  return Status::Ok();
}

// Rank 0 has said of whom all were waiting.
void Negotiator::LogKept(const Entries& kept) const {
  for (const Kept kind : {Kept::kWithAll, Kept::kLate}) {
    if (kind == Kept::kWithAll && rank_ == 0) continue;
    const Entry* first = nullptr;
    size_t tensors = 0;
    for (const Entry& entry : kept) {
      if (entry.kept != kind || Contains(entry.agreed.away, rank_)) continue;
      if (tensors++ == 0) first = &entry;
    }
    if (first == nullptr) continue;
    Log(LogLevel::kWarn, "stall",
        "tensor '" + first->request().name + "'" +
            (tensors > 1 ? " and " + std::to_string(tensors - 1) + " more" : "") + ": " +
            (kind == Kept::kLate ? "this rank came" : "a rank was") +
            " too late for its round (HORON_GOSSIP_TIMEOUT); it keeps what it has");
  }
}

void Negotiator::Trace(const horon::Report& report) const {
  Log(LogLevel::kTrace, kLogComponent,
      "report " + std::to_string(reports_ + 1) + ": " + std::to_string(report.bits.size()) +
          " known, " + std::to_string(report.requests.size()) + " new" +
          (report.requests.empty() ? "" : " (first '" + report.requests[0].name + "')") +
          (report.leaving ? ", leaving" : "") + (report.ask ? ", asks" : ""));
}

void Negotiator::Trace(const Decision& decision) const {
  Log(LogLevel::kTrace, kLogComponent,
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

Status Negotiator::ApplyVerdict(const Verdict& verdict, Batch& batch, Batch& kept) {
  if (verdict.only_rank >= 0 && verdict.only_rank != rank_) return Status::Ok();
  if (Contains(verdict.joined, rank_)) return ApplyWithout(verdict, verdict.kept ? kept : batch);
  const SharedRegistration what = registry_->Find(verdict.process_set, verdict.name);
  if (!what) return Status::Ok();  // of a set that I am not in
  responses_.Add();
  std::optional<Entry> entry = pending_.Take(*what);
  if (!entry) return Status::Ok();
  if (!verdict.status.ok()) {
    entry->promise.Finish(verdict.status);
    return Status::Ok();
  }
  if (verdict.kept) {
    kept_.Add();
    Run(std::move(*entry), verdict, kept);
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

void Negotiator::Run(Entry&& entry, const Verdict& verdict, Batch& batch) {
  entry.agreed = verdict.agreed;
  entry.joined = !verdict.joined.empty();
  if (verdict.kept) entry.kept = verdict.only_rank < 0 ? Kept::kWithAll : Kept::kLate;
  const bool away = entry.what->op->when_joined() == WhenJoined::kAway;
  if (away) entry.agreed.away.assign(verdict.joined.begin(), verdict.joined.end());
  Run(std::move(entry), batch);
}

void Negotiator::Run(Entry&& entry, Batch& batch) {
  entry.locked = {};  // a schedule may have started it, and taken it back
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
    registry_->ForgetSet(id);
  } else if (request.op != "join" && !sets_->Find(id)) {
    sets_->Add(id, std::vector<int>(request.splits.begin(), request.splits.end()),
               FormsSet(request.op));
  }
}

void Negotiator::ApplyLeft(const Decision& decision) {
  for (int32_t rank : decision.left) {
    tree_.Gone(rank);  // this decision was its last
    if (first_gone_ < 0) first_gone_ = rank;
    if (rank == rank_) confirmed_ = true;
    const bool with_leader = rank == rank_ && !leaving_;
    if (over_ || (rank != 0 && !with_leader)) continue;
    over_ = true;
    over_reason_ = WhyOver(rank);
    FailPending(Status::Aborted(over_reason_));  // what is agreed all ranks run
  }
}

// Whoever left first is the cause: rank 0, or a node's leader, may have gone because of it.
std::string Negotiator::WhyOver(int32_t gone) const {
  if (rank_ == 0) return "this rank has left the job";
  const std::string which =
      gone == 0 ? "rank 0" : "the first rank of this node, which negotiates for it,";
  const int leader = gone == 0 ? 0 : tree_.NodeOf(rank_)[0];
  if (first_gone_ == leader)
    return which + " has left the job (it called shutdown or its program ended)";
  return "rank " + std::to_string(first_gone_) + " has left the job, and " + which +
         " after it (they called shutdown or their programs ended; a rank with fewer steps than "
         "the others has to call join first)";
}

}  // namespace horon
