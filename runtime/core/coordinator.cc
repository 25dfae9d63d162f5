#include "runtime/core/coordinator.h"

#include <algorithm>

namespace horon {
namespace {

std::string GroupKey(int32_t set, const std::string& group) { return KeyOf(set, group); }

int IndexOf(const std::vector<int>& ranks, int rank) {
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return it != ranks.end() && *it == rank ? static_cast<int>(it - ranks.begin()) : -1;
}

bool ChangesSets(const Request& r) { return r.op.starts_with("process_set."); }

}  // namespace

Coordinator::Coordinator(int size, OpTable& ops, const ProcessSets& sets, int64_t cache_capacity)
    : size_(size),
      ops_(&ops),
      sets_(&sets),
      capacity_(cache_capacity),
      left_(static_cast<size_t>(size)),
      heard_(static_cast<size_t>(size)) {}

Status Coordinator::Hear(int rank, Report report) {
  heard_[static_cast<size_t>(rank)] = report.heard;
  std::vector<std::string> keys;
  for (uint64_t id : report.bits) {
    const auto it = cache_.find(id);
    // Of a set that was removed meanwhile any request will do: HearOne tells the rank so.
    const auto ranks = it == cache_.end() ? nullptr : sets_->Find(it->second.process_set);
    const int index = it == cache_.end() ? -1 : ranks ? IndexOf(*ranks, rank) : 0;
    if (index < 0 || index >= static_cast<int>(it->second.by_rank.size())) {
      return Status::Internal("rank " + std::to_string(rank) +
                              " sent a cache id that it was never given");
    }
    HearOne(rank, it->second.by_rank[static_cast<size_t>(index)], id, keys);
  }
  for (Request& request : report.requests) {
    HearOne(rank, std::make_shared<const Request>(std::move(request)), 0, keys);
  }
  // Judged after all was heard: a group is reported as a whole, and must be whole when it fails.
  for (const std::string& key : keys) Consider(key);
  if (report.leaving) Leave(rank);
  return Status::Ok();
}

Status Coordinator::Admissible(int rank, const Request& request,
                               const ProcessSets::Ranks& ranks) const {
  if (!ranks) {
    return Status::InvalidArgument("tensor '" + request.name + "': process set " +
                                   std::to_string(request.process_set) +
                                   " does not exist or was removed");
  }
  if (IndexOf(*ranks, rank) < 0) {
    return Status::InvalidArgument("tensor '" + request.name + "': rank " + std::to_string(rank) +
                                   " is not a member of process set " +
                                   std::to_string(request.process_set));
  }
  for (int member : *ranks) {
    if (left_[static_cast<size_t>(member)]) {
      return Status::Aborted("tensor '" + request.name + "' needs rank " + std::to_string(member) +
                             ", which has left the job (it called shutdown or its program ended)");
    }
  }
  return Status::Ok();
}

void Coordinator::HearOne(int rank, SharedRequest request, uint64_t cache_id,
                          std::vector<std::string>& keys) {
  std::string key = KeyOf(request->process_set, request->name);
  if (AnswerOwed(rank, *request, key)) return;
  const ProcessSets::Ranks ranks = sets_->Find(request->process_set);
  const Status admissible = Admissible(rank, *request, ranks);
  if (!admissible.ok()) {
    TellOne(rank, *request, admissible);
    return;
  }
  Row& row = rows_[key];
  if (!row.ranks) {
    row.ranks = ranks;
    row.by_rank.resize(ranks->size());
    row.cache_id = cache_id;
    row.since = now_;
  }
  SharedRequest& slot = row.by_rank[static_cast<size_t>(IndexOf(*ranks, rank))];
  if (slot) {  // its own queue refuses this; only a broken rank gets here
    TellOne(rank, *request,
            Status::Internal("rank " + std::to_string(rank) + " reported '" + request->name +
                             "' twice"));
    return;
  }
  // Equal requests share one object: at thousands of ranks that is what they weigh.
  slot = row.by_rank[0] && *row.by_rank[0] == *request ? row.by_rank[0] : std::move(request);
  if (row.cache_id != cache_id) row.cache_id = 0;
  ++row.reported;
  keys.push_back(std::move(key));
}

bool Coordinator::GroupsDiffer(const Row& row) {
  const Request* first = nullptr;
  for (const SharedRequest& r : row.by_rank) {
    if (!r || r.get() == first) continue;
    if (first == nullptr) {
      first = r.get();
    } else if (r->group_hash != first->group_hash || r->group_size != first->group_size ||
               r->group != first->group) {
      return true;
    }
  }
  return false;
}

// Judges a name that every rank has reported; a group that differs from rank to rank can never be
// complete, which shows before that.
void Coordinator::Consider(const std::string& key) {
  const auto it = rows_.find(key);
  if (it == rows_.end()) return;  // failed with its group
  Row& row = it->second;
  if (row.reported == static_cast<int>(row.ranks->size())) {
    Judge(key, row);
    return;
  }
  if (!GroupsDiffer(row)) return;
  std::vector<const Request*> some;
  std::vector<int> who;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    if (row.by_rank[i]) some.push_back(row.by_rank[i].get()), who.push_back((*row.ranks)[i]);
  }
  const Status status = CheckSame(some, who, "groups", [](const Request& r) {
    return r.group.empty()
               ? std::string("no group")
               : "group '" + r.group + "' of " + std::to_string(r.group_size) +
                     " tensors (their names hash to " + std::to_string(r.group_hash % 10000) + ")";
  });
  Fail(key, status);
}

// A rank that comes late to a name that has failed meanwhile gets the same sentence.
bool Coordinator::AnswerOwed(int rank, const Request& request, const std::string& key) {
  const auto answer = [&](std::map<std::string, Owed>& owed, const std::string& owed_key) {
    const auto it = owed.find(owed_key);
    if (it == owed.end()) return false;
    const auto member = it->second.ranks.find(rank);
    if (member == it->second.ranks.end()) return false;
    TellOne(rank, request, it->second.status);
    if (--member->second == 0) it->second.ranks.erase(member);
    if (it->second.ranks.empty()) owed.erase(it);
    return true;
  };
  if (!request.group.empty() &&
      answer(owed_groups_, GroupKey(request.process_set, request.group))) {
    const auto it = owed_names_.find(key);  // it was owed under its name too
    if (it != owed_names_.end()) {
      it->second.ranks.erase(rank);
      if (it->second.ranks.empty()) owed_names_.erase(it);
    }
    return true;
  }
  return answer(owed_names_, key);
}

void Coordinator::TellOne(int rank, const Request& request, const Status& status) {
  Verdict verdict;
  verdict.process_set = request.process_set;
  verdict.name = request.name;
  verdict.status = status;
  verdict.only_rank = rank;
  failed_.push_back(std::move(verdict));
}

Status Coordinator::CheckMembership(const Row& row, Agreement* agreed) const {
  std::vector<const Request*> requests;
  for (const SharedRequest& r : row.by_rank) requests.push_back(r.get());
  HORON_TRY(CheckSame(requests, *row.ranks, "process sets",
                      [](const Request& r) { return ToString(r.splits); }));
  const Request& first = *requests[0];
  if (first.op == "process_set.add") {
    const int32_t known = sets_->IdOf(std::vector<int>(first.splits.begin(), first.splits.end()));
    if (known >= 0) {
      return Status::InvalidArgument("a process set with the ranks " + ToString(first.splits) +
                                     " exists already: it is number " + std::to_string(known));
    }
    const int32_t id = sets_->NextId();
    if (id < 0)
      return Status::InvalidArgument("there are 255 process sets already; remove one first");
    agreed->sizes = {id};
  } else {
    agreed->sizes = first.splits;
  }
  return Status::Ok();
}

Status Coordinator::CheckRow(const Row& row, Agreement* agreed) const {
  std::vector<const Request*> requests;
  for (const SharedRequest& r : row.by_rank) requests.push_back(r.get());
  HORON_TRY(CheckSame(requests, *row.ranks, "operations", [](const Request& r) { return r.op; }));
  if (ChangesSets(*requests[0])) return CheckMembership(row, agreed);
  HORON_ASSIGN(Op* const op, ops_->Find(requests[0]->op));
  HORON_ASSIGN(*agreed, op->Check(requests, *row.ranks));
  return Status::Ok();
}

void Coordinator::Judge(const std::string& key, Row& row) {
  const auto remembered = cache_.find(row.cache_id);
  if (row.cache_id != 0 && remembered != cache_.end() && remembered->second.evicted_at == 0) {
    row.agreed = remembered->second.agreed;
  } else {
    row.cache_id = 0;
    const Status status = CheckRow(row, &row.agreed);
    if (!status.ok()) {
      Fail(key, status);
      return;
    }
  }
  Ready(key);
}

void Coordinator::Ready(const std::string& key) {
  const Request& request = *rows_[key].by_rank[0];
  if (request.group.empty()) {
    rows_[key].ready = true;
    ready_.push_back(key);
    return;
  }
  // With the hash: two groups of one name may be on their way at once.
  const std::string group =
      GroupKey(request.process_set, request.group) + "\n" + std::to_string(request.group_hash);
  auto& members = group_ready_[group];
  members.push_back(key);
  if (static_cast<int>(members.size()) < request.group_size) return;
  for (const std::string& member : members) rows_[member].ready = true;
  ready_.insert(ready_.end(), members.begin(), members.end());
  group_ready_.erase(group);
}

void Coordinator::Fail(const std::string& key, const Status& status) {
  if (!rows_.contains(key)) return;  // failed with its group
  std::vector<std::pair<int32_t, std::string>> groups;
  for (const SharedRequest& r : rows_[key].by_rank) {
    if (r && !r->group.empty()) groups.emplace_back(r->process_set, r->group);
  }
  for (const auto& [set, group] : groups) FailGroup(set, group, status);
  FailRow(key, status, {});  // nothing left to do if it was in a group
}

// Ranks that have not reported the name owe it, but those in `settled`.
void Coordinator::FailRow(const std::string& key, const Status& status,
                          const std::set<int>& settled) {
  const auto it = rows_.find(key);
  if (it == rows_.end()) return;
  Row& row = it->second;
  if (row.ready) std::erase(ready_, key);
  Owed owed;
  owed.status = status;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    const int rank = (*row.ranks)[i];
    if (row.by_rank[i]) {
      TellOne(rank, *row.by_rank[i], status);
    } else if (!left_[static_cast<size_t>(rank)] && !settled.contains(rank)) {
      owed.ranks[rank] = 1;
    }
  }
  if (!owed.ranks.empty()) owed_names_[key] = std::move(owed);
  rows_.erase(it);
}

// All its members fail, on all ranks. A rank that has reported the group owes nothing more; one
// that has reported its tensors alone may still owe some of them; one that has reported nothing
// owes the group.
void Coordinator::FailGroup(int32_t set, const std::string& group, const Status& status) {
  const std::string group_key = GroupKey(set, group);
  std::erase_if(group_ready_,
                [&](const auto& item) { return item.first.starts_with(group_key + "\n"); });
  std::vector<std::string> keys;
  std::set<int> as_group, somehow;
  int members = 0;
  ProcessSets::Ranks ranks;
  for (const auto& [key, row] : rows_) {
    std::set<int> reported;
    bool in_group = false;
    for (size_t i = 0; i < row.by_rank.size(); ++i) {
      const SharedRequest& r = row.by_rank[i];
      if (!r) continue;
      reported.insert((*row.ranks)[i]);
      if (r->process_set != set || r->group != group) continue;
      in_group = true;
      members = std::max(members, static_cast<int>(r->group_size));
      as_group.insert((*row.ranks)[i]);
    }
    if (!in_group) continue;
    keys.push_back(key);
    ranks = row.ranks;
    somehow.merge(reported);
  }
  if (keys.empty()) return;
  for (const std::string& key : keys) FailRow(key, status, as_group);
  Owed owed;
  owed.status = status;
  for (int rank : *ranks) {
    if (!somehow.contains(rank) && !left_[static_cast<size_t>(rank)]) owed.ranks[rank] = members;
  }
  if (!owed.ranks.empty()) owed_groups_[group_key] = std::move(owed);
}

void Coordinator::Leave(int rank) {
  if (left_[static_cast<size_t>(rank)]) return;
  left_[static_cast<size_t>(rank)] = true;
  newly_left_.push_back(rank);
  std::vector<std::string> keys;
  for (const auto& [key, row] : rows_) {
    if (IndexOf(*row.ranks, rank) >= 0)
      keys.push_back(key);  // also what is ready: it could not run any more
  }
  for (const std::string& key : keys) {
    const auto it = rows_.find(key);
    if (it == rows_.end()) continue;  // failed with its group
    const auto& some = *std::find_if(it->second.by_rank.begin(), it->second.by_rank.end(),
                                     [](const SharedRequest& r) { return r != nullptr; });
    Fail(key,
         Status::Aborted("tensor '" + some->name + "' needs rank " + std::to_string(rank) +
                         ", which has left the job (it called shutdown or its program ended)"));
  }
  // Nobody waits for what it still owed.
  for (auto* owed : {&owed_names_, &owed_groups_}) {
    for (auto& [key, item] : *owed) item.ranks.erase(rank);
    std::erase_if(*owed, [](const auto& item) { return item.second.ranks.empty(); });
  }
}

Decision Coordinator::Decide(bool anyway) {
  Decision decision;
  if (!HasNews() && !anyway) return decision;
  decision.sequence = ++sequence_;
  decision.verdicts = std::exchange(failed_, {});
  decision.left = std::exchange(newly_left_, {});
  std::set<int32_t> removed;
  for (const std::string& key : std::exchange(ready_, {})) {
    Row& row = rows_[key];
    row.ready = false;
    if (removed.contains(row.by_rank[0]->process_set)) continue;  // fails below
    if (row.by_rank[0]->op == "process_set.remove")
      removed.insert(static_cast<int32_t>(row.agreed.sizes[0]));
    const auto remembered = cache_.find(row.cache_id);
    if (remembered == cache_.end() || remembered->second.evicted_at != 0) row.cache_id = 0;
    Verdict verdict;
    verdict.cache_id = row.cache_id;
    if (row.cache_id == 0) {
      verdict.process_set = row.by_rank[0]->process_set;
      verdict.name = row.by_rank[0]->name;
      verdict.agreed = std::move(row.agreed);
      Remember(key, row, verdict, sequence_);
    } else {
      Remembered& entry = cache_[row.cache_id];
      std::erase(by_use_[entry.used], row.cache_id);
      if (by_use_[entry.used].empty()) by_use_.erase(entry.used);
      entry.used = sequence_;
      if (entry.evicted_at == 0) by_use_[sequence_].push_back(row.cache_id);
    }
    decision.verdicts.push_back(std::move(verdict));
    rows_.erase(key);
  }
  for (int32_t set : removed) ForgetSet(set);
  Evict(decision);
  ForgetHeard();
  return decision;
}

// What still waits in a removed set fails with the next decision; what was remembered is forgotten.
void Coordinator::ForgetSet(int32_t set) {
  std::vector<std::string> keys;
  for (const auto& [key, row] : rows_) {
    const auto& some = *std::find_if(row.by_rank.begin(), row.by_rank.end(),
                                     [](const SharedRequest& r) { return r != nullptr; });
    if (some->process_set == set) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    if (!rows_.contains(key)) continue;  // failed with its group
    const std::string name = key.substr(key.find('/') + 1);
    Fail(key, Status::InvalidArgument("tensor '" + name + "': process set " + std::to_string(set) +
                                      " was removed while it was pending"));
    owed_names_.erase(key);  // later submits are refused anyway
  }
  for (auto& [id, entry] : cache_) {
    if (entry.process_set != set || entry.evicted_at != 0) continue;
    entry.evicted_at = sequence_;
    cache_id_of_.erase(entry.key);
    std::erase(by_use_[entry.used], id);
    if (by_use_[entry.used].empty()) by_use_.erase(entry.used);
  }
}

void Coordinator::Remember(const std::string& key, Row& row, Verdict& verdict, uint64_t sequence) {
  const Request& first = *row.by_rank[0];
  if (capacity_ == 0 || ChangesSets(first)) return;
  const auto op = ops_->Find(first.op);
  if (!op.ok() || !op.value()->cacheable()) return;
  const auto old = cache_id_of_.find(key);
  if (old !=
      cache_id_of_
          .end()) {  // same name, other shape: every rank replaces it when it sees the new id
    Remembered& entry = cache_[old->second];
    entry.evicted_at = sequence;
    std::erase(by_use_[entry.used], old->second);
    if (by_use_[entry.used].empty()) by_use_.erase(entry.used);
  }
  const uint64_t id = next_cache_id_++;
  Remembered entry{key, first.process_set, row.by_rank, verdict.agreed, sequence, 0};
  cache_.emplace(id, std::move(entry));
  cache_id_of_[key] = id;
  by_use_[sequence].push_back(id);
  verdict.cache_id = id;
}

void Coordinator::Evict(Decision& decision) {
  while (static_cast<int64_t>(cache_id_of_.size()) > capacity_) {
    auto oldest = by_use_.begin();
    if (oldest->second.empty()) {
      by_use_.erase(oldest);
      continue;
    }
    const uint64_t id = oldest->second.front();
    oldest->second.erase(oldest->second.begin());
    Remembered& entry = cache_[id];
    entry.evicted_at = sequence_;
    cache_id_of_.erase(entry.key);
    decision.evicted.push_back(id);
  }
}

// An evicted id may still be on its way here from a rank that has not heard of the eviction.
void Coordinator::ForgetHeard() {
  uint64_t all_heard = sequence_;
  for (int rank = 0; rank < size_; ++rank) {
    if (!left_[static_cast<size_t>(rank)])
      all_heard = std::min(all_heard, heard_[static_cast<size_t>(rank)]);
  }
  std::erase_if(cache_, [&](const auto& item) {
    return item.second.evicted_at != 0 && item.second.evicted_at < all_heard;
  });
}

std::vector<PendingTensor> Coordinator::Pending() const {
  std::vector<PendingTensor> pending;
  for (const auto& [key, row] : rows_) {
    PendingTensor one{key, {}, {}, row.since};
    for (size_t i = 0; i < row.by_rank.size(); ++i)
      (row.by_rank[i] ? one.ready : one.missing).push_back((*row.ranks)[i]);
    if (!one.missing.empty()) pending.push_back(std::move(one));
  }
  return pending;
}

}  // namespace horon
