#include "runtime/core/coordinator.h"

#include <algorithm>

namespace horon {
Coordinator::Coordinator(int size, OpTable& ops, const ProcessSets& sets, int64_t cache_capacity,
                         std::chrono::milliseconds patience)
    : size_(size),
      ops_(&ops),
      sets_(&sets),
      cache_(cache_capacity, [this](uint64_t id) { Unlink(id); }),
      patience_(patience),
      left_(static_cast<size_t>(size)),
      heard_(static_cast<size_t>(size)) {}

// The place of a rank in an ascending list, or -1.
int Coordinator::IndexOf(const std::vector<int>& ranks, int rank) {
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return it != ranks.end() && *it == rank ? static_cast<int>(it - ranks.begin()) : -1;
}

// What this rank wanted when the id was given out.
Result<SharedRequest> Coordinator::Remembered(int rank, uint64_t cache_id) const {
  const AgreementCache::Line* const line = cache_.Find(cache_id);
  int index = -1;
  if (line != nullptr) {
    // Of a set that was removed meanwhile any request will do: HearOne tells the rank so.
    const auto ranks = sets_->Find(line->process_set());
    index = ranks ? IndexOf(*ranks, rank) : 0;
  }
  if (index < 0 || index >= static_cast<int>(line->by_rank.size())) {
    return Status::Internal("rank " + std::to_string(rank) +
                            " sent a cache id that it was never given");
  }
  return line->by_rank[static_cast<size_t>(index)];
}

Status Coordinator::Hear(int rank, Report report) {
  heard_[static_cast<size_t>(rank)] = report.heard;
  const int joined = join_ != nullptr ? join_->reported : 0;
  RecycledVector<Row*> heard;
  for (uint64_t id : report.bits) {
    if (HearAgain(rank, id, heard)) continue;
    HORON_ASSIGN(SharedRequest request, Remembered(rank, id));
    HearOne(rank, std::move(request), id, heard);
  }
  for (Request& request : report.requests) {
    HearOne(rank, std::make_shared<const Request>(std::move(request)), 0, heard);
  }
  // Judged after all was heard: a group is reported as a whole, and must be whole when it fails.
  for (Row* row : heard) {
    if (row->reported > 0) Consider(*row);  // else it failed with its group
  }
  if (join_ != nullptr && join_->reported > joined) ConsiderAll();
  if (report.leaving) Leave(rank);
  Sweep();
  return Status::Ok();
}

// The usual case in a steady job: all that there is to do is to tick the rank off. False if it
// takes a closer look.
bool Coordinator::HearAgain(int rank, uint64_t cache_id, RecycledVector<Row*>& heard) {
  if (!gone_.empty() || join_ != nullptr || !owed_names_.empty() || !owed_groups_.empty()) return false;
  const auto it = row_of_.find(cache_id);
  if (it == row_of_.end()) return false;
  Row& row = *it->second;
  if (row.reported > 0 && row.cache_id != cache_id) return false;
  const int index = IndexOf(*row.ranks, rank);
  if (index < 0 || row.by_rank[static_cast<size_t>(index)]) return false;
  const bool first = row.reported == 0;
  if (first) Begin(row, cache_id);
  row.Put(index, cache_.Find(cache_id)->by_rank[static_cast<size_t>(index)]);
  if (first) Await(row);
  heard.push_back(&row);
  return true;
}

// With its first report.
void Coordinator::Begin(Row& row, uint64_t cache_id) {
  row.since = now_;
  row.cache_id = cache_id;
}

void Coordinator::Await(const Row& row) {
  if (row.patient) return;
  if (waiting_++ == 0) late_at_ = Time::max();
  late_at_ = std::min(late_at_, now_ + patience_);
}

void Coordinator::HearOne(int rank, SharedRequest request, uint64_t cache_id,
                          RecycledVector<Row*>& heard) {
  std::string key = KeyOf(request->process_set, request->name);
  if (AnswerOwed(rank, *request, key)) return;
  const ProcessSets::Ranks ranks = sets_->Find(request->process_set);
  const Status admissible = Admissible(rank, *request, ranks);
  if (!admissible.ok()) {
    TellOne(rank, *request, admissible);
    return;
  }
  const auto place = rows_.try_emplace(std::move(key)).first;
  Row& row = place->second;
  row.key = &place->first;
  if (row.reported == 0) {
    row.ranks = ranks;
    row.by_rank.resize(ranks->size());
    Begin(row, cache_id);
  }
  const int index = IndexOf(*ranks, rank);
  if (row.by_rank[static_cast<size_t>(index)]) {  // refused by its own queue, unless it is broken
    TellOne(rank, *request,
            Status::Internal("rank " + std::to_string(rank) + " reported '" + request->name +
                             "' twice"));
    return;
  }
  if (row.cache_id != cache_id) row.cache_id = 0;
  const bool first = row.reported == 0;
  if (first) row.patient = patience_.count() == 0 || WhenLateOf(request->op) == WhenLate::kWait;
  // Equal requests share one object: at thousands of ranks that is what they weigh.
  row.Put(index, row.first && *row.first == *request ? row.first : std::move(request));
  if (first) Await(row);
  heard.push_back(&row);
  if (row.first->op == "join") Join(row, rank);
}

// Judges a name that every rank has reported; a group that differs from rank to rank can never be
// complete, which shows before that.
void Coordinator::Consider(Row& row) {
  if (Complete(row)) {
    Judge(row);
    return;
  }
  if (!row.mixed) return;
  std::vector<const Request*> some;
  std::vector<int> who;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    if (row.by_rank[i]) some.push_back(row.by_rank[i].get()), who.push_back((*row.ranks)[i]);
  }
  Settle(*row.key, CheckGroups(some, who));
}

Status Coordinator::CheckRow(const Row& row, Agreement* agreed) {
  std::vector<const Request*> requests;
  for (const SharedRequest& r : row.by_rank) requests.push_back((r ? r : row.stand_in).get());
  HORON_TRY(CheckSame(requests, *row.ranks, "operations", [](const Request& r) { return r.op; }));
  if (IsBuiltIn(requests[0]->op)) return CheckBuiltIn(row, agreed);
  HORON_ASSIGN(Op* const op, ops_->Find(requests[0]->op));
  HORON_ASSIGN(*agreed, op->Check(requests, *row.ranks));
  return Status::Ok();
}

void Coordinator::Judge(Row& row) {
  StandIn(row);
  const AgreementCache::Line* const line = cache_.FindAlive(row.cache_id);
  if (line == nullptr || !row.joined.empty()) {
    row.cache_id = 0;
    const Status status = CheckRow(row, &row.agreed);
    if (!status.ok()) {
      Settle(*row.key, status);
      return;
    }
  }
  Ready(row);
}

void Coordinator::Ready(Row& row) {
  if (row.grouped != row.some()) {
    row.grouped = row.some();
    const Request& request = *row.grouped;
    // With the hash: two groups of one name may be on their way at once.
    row.group = request.group.empty() ? ""
                                      : KeyOf(request.process_set, request.group) + "\n" +
                                            std::to_string(request.group_hash);
  }
  if (row.group.empty()) {
    row.ready = true;
    ready_.push_back(&row);
    return;
  }
  auto& members = group_ready_[row.group];
  members.push_back(&row);
  if (static_cast<int>(members.size()) < row.some()->group_size) return;
  for (Row* member : members) member->ready = true;
  ready_.insert(ready_.end(), members.begin(), members.end());
  group_ready_.erase(row.group);
}

Decision Coordinator::Pause() {
  Decision decision;
  decision.sequence = ++sequence_;
  return decision;
}

Decision Coordinator::Decide(bool anyway) {
  Decision decision;
  if (!HasNews() && !anyway) return decision;
  decision.sequence = ++sequence_;
  if (!ready_.empty()) decided_at_ = now_;
  decision.verdicts = std::exchange(told_, {});
  decision.order.assign(decision.verdicts.size(), 0);
  decision.left = std::exchange(newly_left_, {});
  promised_.clear();  // rank 0 applies this decision before it hears anything more
  std::set<int32_t> removed;
  for (Row* row : std::exchange(ready_, {})) {
    row->ready = false;
    if (removed.contains(row->some()->process_set)) continue;  // fails below
    if (row->some()->op == "process_set.remove")
      removed.insert(static_cast<int32_t>(row->agreed.sizes[0]));
    RunRow(*row, decision);
    Clear(*row);
  }
  for (int32_t set : removed) {
    FailSet(set);
    cache_.EvictSet(set, sequence_);
  }
  decision.evicted = cache_.EvictOldest(sequence_);
  // An evicted id may still be on its way here from a rank that has not heard of the eviction.
  cache_.ForgetHeard(HeardByAll());
  Sweep();
  return decision;
}

bool Coordinator::Cacheable(const Request& request) const {
  if (IsBuiltIn(request.op)) return false;
  const auto op = ops_->Find(request.op);
  return op.ok() && op.value()->cacheable();
}

uint64_t Coordinator::HeardByAll() const {
  uint64_t heard = sequence_;
  for (int rank = 0; rank < size_; ++rank) {
    if (!left_[static_cast<size_t>(rank)])
      heard = std::min(heard, heard_[static_cast<size_t>(rank)]);
  }
  return heard;
}

std::vector<PendingTensor> Coordinator::Pending() const {
  std::vector<PendingTensor> pending;
  for (const auto& [key, row] : rows_) {
    if (row.reported == 0) continue;
    const Request& some = *row.some();
    PendingTensor one{key, {}, {}, row.since, {}, some.group_size, some.group_hash};
    if (!some.group.empty()) one.group = KeyOf(some.process_set, some.group);
    if (&row == join_) one.since = std::max(row.since, decided_at_);  // others go on meanwhile
    for (size_t i = 0; i < row.by_rank.size(); ++i) {
      const int rank = (*row.ranks)[i];
      if (row.by_rank[i] || Needs(row, rank))
        (row.by_rank[i] ? one.ready : one.missing).push_back(rank);
    }
    if (!one.missing.empty()) pending.push_back(std::move(one));
  }
  return pending;
}

}  // namespace horon
