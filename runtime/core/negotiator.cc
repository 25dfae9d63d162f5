#include "runtime/core/negotiator.h"

namespace horon {
namespace {

// How often a rank with nothing to report still says how far it has heard, so that the coordinator
// may forget evicted cache ids.
constexpr uint64_t kTellHeardEvery = 256;

// Counters carry the name of the way: "negotiation.shm.bits".
std::string Way(int rank, const std::vector<Transport*>& control) {
  if (control.size() == 1) return "self";
  return std::string(control[rank == 0 ? control.size() - 1 : 0]->name());
}

}  // namespace

Negotiator::Negotiator(const Config& config, int rank, const std::vector<Transport*>& control,
                       OpTable& ops, ProcessSets& sets, Counters& counters)
    : rank_(rank),
      fusion_bytes_(config.fusion_bytes),
      ops_(&ops),
      sets_(&sets),
      gone_(control.size()),
      requests_(counters["negotiation." + Way(rank, control) + ".requests"]),
      bits_(counters["negotiation." + Way(rank, control) + ".bits"]),
      responses_(counters["negotiation." + Way(rank, control) + ".responses"]),
      cached_responses_(counters["negotiation." + Way(rank, control) + ".cached_responses"]) {
  channels_.resize(control.size());
  if (rank == 0) {
    coordinator_ = std::make_unique<Coordinator>(static_cast<int>(control.size()), ops, sets,
                                                 config.cache_capacity);
    for (size_t peer = 1; peer < control.size(); ++peer) {
      channels_[peer] =
          std::make_unique<ControlChannel>(*control[peer], static_cast<int>(peer), counters);
    }
  } else {
    channels_[0] = std::make_unique<ControlChannel>(*control[0], 0, counters);
  }
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

bool Negotiator::sending() const {
  for (size_t peer = 0; peer < channels_.size(); ++peer) {
    if (channels_[peer] && channels_[peer]->sending()) return true;
  }
  return false;
}

Status Negotiator::Send(horon::Report report) {
  report.heard = told_heard_ = heard_;
  moved_ = true;
  if (rank_ == 0) return coordinator_->Hear(0, std::move(report));
  channels_[0]->Send(Encode(report));
  return Status::Ok();
}

Result<std::vector<Batch>> Negotiator::Advance() {
  moved_ = false;
  if (!over_ && (!waiting_to_report_.empty() || heard_ >= told_heard_ + kTellHeardEvery ||
                 (leaving_ && !left_))) {
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
    report.leaving = leaving_;
    left_ = leaving_;
    HORON_TRY(Send(std::move(report)));
  }
  HORON_TRY(HearPeers());
  if (coordinator_ && coordinator_->HasNews()) HORON_TRY(Decide());
  return std::exchange(batches_, {});
}

Status Negotiator::HearPeers() {
  for (size_t peer = 0; peer < channels_.size(); ++peer) {
    if (!channels_[peer] || (over_ && rank_ != 0)) continue;
    HORON_TRY(channels_[peer]->Advance());
    while (auto message = channels_[peer]->Receive()) {
      moved_ = true;
      if (rank_ == 0) {
        HORON_ASSIGN(horon::Report report, DecodeReport(*message));
        const bool leaving = report.leaving;
        HORON_TRY(coordinator_->Hear(static_cast<int>(peer), std::move(report)));
        if (leaving) {
          channels_[peer]->CloseReceiving();
          break;
        }
      } else {
        HORON_ASSIGN(const Decision decision,
                     DecodeDecision(*message, static_cast<int>(channels_.size())));
        HORON_TRY(Apply(decision));
      }
    }
  }
  return Status::Ok();
}

Status Negotiator::Decide() {
  Decision decision = coordinator_->Decide();
  decision.fusion_bytes = fusion_bytes_;
  const std::vector<std::byte> bytes = Encode(decision);
  for (size_t peer = 1; peer < channels_.size(); ++peer) {
    if (gone_[peer]) continue;
    channels_[peer]->Send(bytes);
    HORON_TRY(channels_[peer]->Advance());
  }
  for (int32_t rank : decision.left)
    gone_[static_cast<size_t>(rank)] = true;  // this decision was its last
  moved_ = true;
  return Apply(decision);
}

Status Negotiator::Apply(const Decision& decision) {
  if (decision.sequence != heard_ + 1) {
    return Status::Internal("decision " + std::to_string(decision.sequence) + " came after " +
                            std::to_string(heard_));
  }
  heard_ = decision.sequence;
  fusion_bytes_ = decision.fusion_bytes;
  Batch batch;
  for (const Verdict& verdict : decision.verdicts) ApplyVerdict(verdict, batch);
  for (uint64_t id : decision.evicted) cache_.Forget(id);
  if (!batch.empty()) batches_.push_back(std::move(batch));
  ApplyLeft(decision);
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
    if (rank == rank_) confirmed_ = true;
    if (rank != 0 || over_) continue;
    over_ = true;
    over_reason_ = rank_ == 0 ? "this rank has left the job"
                              : "rank 0 has left the job (it called shutdown or its program ended)";
    FailAll(Status::Aborted(over_reason_));
  }
}

void Negotiator::Leave() { leaving_ = true; }

void Negotiator::FailAll(const Status& status) {
  waiting_to_report_.clear();
  auto pending = std::exchange(pending_, {});
  for (auto& [key, entry] : pending) entry.promise.Finish(status);
}

}  // namespace horon
