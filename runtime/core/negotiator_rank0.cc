// Rank 0's side of negotiation: from the ranks' reports to decisions for all.
#include "runtime/base/log.h"
#include "runtime/core/negotiator.h"

namespace horon {

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
  if (schedule_.locked()) HearLocked(rank, report);
  const bool ask = report.ask, describe = report.describe;
  if (report.leaving) judge_->Left(rank);
  if (!report.given_up.empty()) {
    lost_ = rank;
    lost_because_ = report.given_up;
  }
  if (report.clock) clocks_.push_back({rank, *report.clock, SteadyNow()});
  const std::optional<Activity> activity = std::exchange(report.activity, std::nullopt);
  HORON_TRY(coordinator_->Hear(rank, std::move(report)));
  if (activity) Follow(judge_->Answered(rank, *activity, now, coordinator_->Pending()));
  reply_ = reply_ || ask;  // whoever asks must hear that rank 0 is there
  if (ask) Follow(judge_->Asked(now, coordinator_->Pending()));
  const bool again = describe && std::exchange(describe_when_answered_, true);
  if (!describe_when_answered_ || (!judge_->complete() && !again)) return Status::Ok();
  describe_when_answered_ = false;
  const auto known = judge_->activity(now);
  for (const PendingTensor& tensor : coordinator_->Pending())
    description_.push_back(DescribePending(tensor, known, now));
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

void Negotiator::Order(std::vector<TimelineOrder> orders) {
  orders_.insert(orders_.end(), orders.begin(), orders.end());
}

void Negotiator::Tune(const Tuning& wanted) {
  if (wanted == wanted_tuning_) return;
  wanted_tuning_ = wanted;
  if (schedule_.locked()) unlock_wanted_ = true;
}

// What no rank has to report before it is told.
bool Negotiator::MustTell() const {
  return !lost_because_.empty() || !orders_.empty() || !clocks_.empty() ||
         (!schedule_.locked() && tuning_ != wanted_tuning_);
}

Status Negotiator::Decide() {
  if (schedule_.locked()) return DecideLocked();
  const bool more = std::exchange(reply_, false) || MustTell() || !description_.empty();
  if (!more && !coordinator_->HasNews()) return Status::Ok();
  Decision decision = coordinator_->Decide(more);
  decision.inquire = std::exchange(inquire_, false);
  decision.description = std::exchange(description_, {});
  return Tell(std::move(decision));
}

Status Negotiator::Tell(Decision decision) {
  // Ranks start batches of a locked schedule at different places in the stream of decisions.
  const bool may_change = !schedule_.locked() || decision.resume.has_value();
  decision.tuning = may_change ? wanted_tuning_ : tuning_;
  decision.may_lock = may_lock_;
  decision.lost_because = std::exchange(lost_because_, {});
  if (!decision.lost_because.empty()) decision.lost = lost_;
  if (!orders_.empty()) {
    decision.timeline = std::move(orders_.front());
    orders_.pop_front();
  }
  decision.clocks = std::exchange(clocks_, {});
  if (!decision.clocks.empty()) decision.clock_told = SteadyNow();
  const Status sent = tree_.SendDecision(Encode(decision));
  // Who cannot be told may be gone because of the same: the loss that is known is the cause.
  if (!sent.ok() && decision.lost < 0) return sent;
  moved_ = true;
  return Apply(decision);
}

}  // namespace horon
