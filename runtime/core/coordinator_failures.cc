// What cannot run: names that ranks may not use, tensors and groups that fail, ranks that leave.
#include <algorithm>

#include "runtime/core/coordinator.h"

namespace horon {
namespace {

Status HasLeft(const std::string& name, int rank) {
  return Status::Aborted(
      "tensor '" + name + "' needs rank " + std::to_string(rank) +
      ", which has left the job: it called shutdown or its program ended (a rank with "
      "fewer steps than the others has to call join first)");
}

}  // namespace

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
  for (const int gone : gone_)
    if (IndexOf(*ranks, gone) >= 0 && IsOf(request, gone)) return HasLeft(request.name, gone);
  if (Joined(rank)) {
    return Status::InvalidArgument("tensor '" + request.name + "': rank " + std::to_string(rank) +
                                   " has joined, which says that it has no more tensors; submit "
                                   "this one before join, or after it has returned");
  }
  return Status::Ok();
}

void Coordinator::TellOne(int rank, const Request& request, const Status& status) {
  Verdict verdict;
  verdict.process_set = request.process_set;
  verdict.name = request.name;
  verdict.status = status;
  verdict.only_rank = rank;
  failed_.push_back(std::move(verdict));
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
  if (!request.group.empty() && answer(owed_groups_, KeyOf(request.process_set, request.group))) {
    const auto it = owed_names_.find(key);  // it was owed under its name too
    if (it != owed_names_.end()) {
      it->second.ranks.erase(rank);
      if (it->second.ranks.empty()) owed_names_.erase(it);
    }
    return true;
  }
  return answer(owed_names_, key);
}

// Null if it is idle, or nobody has reported it ever.
Coordinator::Row* Coordinator::Reported(const std::string& key) {
  const auto it = rows_.find(key);
  return it == rows_.end() || it->second.reported == 0 ? nullptr : &it->second;
}

void Coordinator::Fail(const std::string& key, const Status& status) {
  const Row* const row = Reported(key);
  if (row == nullptr) return;  // failed with its group
  std::vector<std::pair<int32_t, std::string>> groups;
  for (const SharedRequest& r : row->by_rank) {
    if (r && !r->group.empty()) groups.emplace_back(r->process_set, r->group);
  }
  for (const auto& [set, group] : groups) FailGroup(set, group, status);
  FailRow(key, status, {});  // nothing left to do if it was in a group
}

// Ranks that have not reported the name owe it, but those in `settled`.
void Coordinator::FailRow(const std::string& key, const Status& status,
                          const std::set<int>& settled) {
  Row* const failed = Reported(key);
  if (failed == nullptr) return;
  Row& row = *failed;
  if (std::exchange(row.ready, false)) std::erase(ready_, failed);
  Owed owed;
  owed.status = status;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    const int rank = (*row.ranks)[i];
    if (row.by_rank[i]) {
      TellOne(rank, *row.by_rank[i], status);
    } else if (!left_[static_cast<size_t>(rank)] && Needs(row, rank) && !settled.contains(rank)) {
      owed.ranks[rank] = 1;
    }
  }
  if (!owed.ranks.empty()) owed_names_[key] = std::move(owed);
  Clear(row);
}

// All its members fail, on all ranks. A rank that has reported the group owes nothing more; one
// that has reported its tensors alone may still owe some of them; one that has reported nothing
// owes the group.
void Coordinator::FailGroup(int32_t set, const std::string& group, const Status& status) {
  const std::string group_key = KeyOf(set, group);
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
    const bool there = !left_[static_cast<size_t>(rank)] && !Joined(rank);
    if (there && !somehow.contains(rank)) owed.ranks[rank] = members;
  }
  if (!owed.ranks.empty()) owed_groups_[group_key] = std::move(owed);
}

// What still waits in a removed set fails with the next decision.
void Coordinator::FailSet(int32_t set) {
  std::vector<std::string> keys;
  for (const auto& [key, row] : rows_) {
    if (row.reported > 0 && row.first->process_set == set) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    const Row* const row = Reported(key);
    if (row == nullptr) continue;  // failed with its group
    Fail(key, Status::InvalidArgument("tensor '" + row->first->name + "': process set " +
                                      std::to_string(set) + " was removed while it was pending"));
    owed_names_.erase(key);  // later submits are refused anyway
  }
}

void Coordinator::Leave(int rank) {
  if (left_[static_cast<size_t>(rank)]) return;
  left_[static_cast<size_t>(rank)] = true;
  gone_.push_back(rank);
  newly_left_.push_back(rank);
  std::vector<std::string> keys;
  for (const auto& [key, row] : rows_) {
    if (row.reported > 0 && IndexOf(*row.ranks, rank) >= 0 && IsOf(*row.first, rank))
      keys.push_back(key);  // also what is ready: it could not run any more
  }
  for (const std::string& key : keys) {
    const Row* const row = Reported(key);
    if (row == nullptr) continue;  // failed with its group
    Fail(key, HasLeft(row->first->name, rank));
  }
  ForgetOwed(rank);
}

// Nobody waits for what it still owed.
void Coordinator::ForgetOwed(int rank) {
  for (auto* owed : {&owed_names_, &owed_groups_}) {
    for (auto& [key, item] : *owed) item.ranks.erase(rank);
    std::erase_if(*owed, [](const auto& item) { return item.second.ranks.empty(); });
  }
}

}  // namespace horon
