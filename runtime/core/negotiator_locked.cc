// The negotiator's side of the locked schedule: running it, wanting out of it, leaving it.
#include "runtime/base/log.h"
#include "runtime/core/negotiator.h"

namespace horon {

// All else is said when negotiation goes on.
bool Negotiator::HasLockedReport() const {
  return started_due_ || answer_ || ask_due_ || timeline_->wants_clock() || !given_up_.empty() ||
         (!unlock_asked_ && WantsUnlock());
}

bool Negotiator::WantsUnlock() const {
  if (others_pending_ || !waiting_to_report_.empty() || ask_ || describe_) return true;
  if (leaving_ && !left_) return true;
  return OutOfPatience();
}

bool Negotiator::OutOfPatience() const {
  const Clock::time_point ends = schedule_.patience_ends(awaited_);
  return ends != Clock::time_point::max() && Clock::now() >= ends;
}

// Starts what is complete, in order.
void Negotiator::RunSchedule() {
  while (const auto* const items = schedule_.Next()) {
    Batch batch{{}, {}, tuning_};
    batch.entries.reserve(items->size());
    const ProcessSets::Ranks ranks = sets_->Find(0);
    for (const LockedSchedule::Item& item : *items) {
      if (!pending_.Take(*item.what, batch.entries)) continue;  // cannot be: Next() counts them
      Entry& entry = batch.entries.back();
      entry.agreed = item.agreed;
      entry.ranks = ranks;
      entry.locked = schedule_.last();
    }
    locked_tensors_.Add(static_cast<int64_t>(batch.entries.size()));
    batches_.push_back(std::move(batch));
    moved_ = true;
  }
}

void Negotiator::ObserveSchedule(const Decision& decision) {
  if (!decision.evicted.empty()) schedule_.ForgetIds();
  if (schedule_.locked() || (decision.order.empty() && !decision.resume)) return;
  const bool plain = decision.verdicts.empty() && decision.evicted.empty() &&
                     decision.left.empty() && !decision.inquire && !decision.resume;
  schedule_.Observe(decision.sequence, decision.order, plain, decision.may_lock, cache_);
  if (!schedule_.locked()) return;
  locks_.Add();
  unlock_asked_ = false;
  // Reported or about to be; what else is pending here has to be negotiated.
  std::erase_if(waiting_to_report_,
                [this](const SharedRegistration& what) { return schedule_.Holds(*what); });
  others_pending_ = false;
  pending_.ForEach([&](const Entry& entry) { others_pending_ |= !schedule_.Holds(*entry.what); });
  if (!coordinator_) return;
  started_.assign(static_cast<size_t>(size_), std::nullopt);
  unlock_wanted_ = false;
  for (const SharedRegistration& what : schedule_.Members()) coordinator_->Withdraw(what->cache_id);
}

// What was started beyond it comes back with TakeBack, after all that came before in the stream.
void Negotiator::Resume(uint64_t first, uint64_t uneven) {
  const std::vector<SharedRegistration> members = schedule_.Members();
  schedule_.Unlock(first, uneven);
  while (!batches_.empty() && !batches_.back().entries.empty() &&
         batches_.back().entries[0].locked.number > first) {
    for (Entry& entry : batches_.back().entries) pending_.Put(std::move(entry));
    batches_.pop_back();
  }
  for (const SharedRegistration& what : members) {
    if (what->slot >= 0) waiting_to_report_.push_back(what);
  }
  batches_.push_back({{}, first, tuning_});
}

void Negotiator::TakeBack(Entries entries) {
  held_ = schedule_.stopped();  // the next one, while batches waited for what is being sent
  moved_ = true;
  Add(entries);
}

// --- rank 0 ------------------------------------------------------------------------------------

// A report that was sent before its rank knew of the schedule names tensors that are in it now.
void Negotiator::HearLocked(int rank, horon::Report& report) {
  if (report.heard < schedule_.since()) {
    std::erase_if(report.bits, [this](uint64_t id) {
      const ResponseCache::Line* const line = cache_.Get(id);
      return line != nullptr && schedule_.Holds(*line->what);
    });
  }
  if (report.started) started_[static_cast<size_t>(rank)] = *report.started;
  if (report.uneven != 0) uneven_ = report.uneven;
  // Why something waits can be told when all that waits is reported; whoever asks asks again.
  describe_when_answered_ = describe_when_answered_ || report.describe;
  unlock_wanted_ = unlock_wanted_ || report.unlock || report.ask || report.leaving ||
                   !report.bits.empty() || !report.requests.empty();
  report.describe = false;
}

Status Negotiator::DecideLocked() {
  const bool all_said = std::all_of(started_.begin(), started_.end(),
                                    [](const auto& started) { return started.has_value(); });
  const bool stop = unlock_wanted_ && !schedule_.stopped();
  const bool resume = schedule_.stopped() && all_said;
  const bool reply = std::exchange(reply_, false);
  if (!stop && !resume && !inquire_ && !MustTell() && !reply) return Status::Ok();
  Decision decision = coordinator_->Pause();
  decision.stop = stop;
  decision.inquire = std::exchange(inquire_, false);
  if (resume) {
    decision.resume = **std::min_element(started_.begin(), started_.end());
    decision.uneven = std::exchange(uneven_, 0);
  }
  HORON_TRY(Tell(std::move(decision)));
  if (!resume || !describe_when_answered_) return Status::Ok();
  reply_ = true;
  Follow(judge_->Asked(Clock::now(), coordinator_->Pending()));
  return Status::Ok();
}

}  // namespace horon
