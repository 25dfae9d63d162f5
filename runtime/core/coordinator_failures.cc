// What does not run: names that ranks may not use, tensors and groups that fail, or that all ranks
// keep as they are (settled with an ok status), ranks that leave.
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

// With the hash: two groups of one name may be on their way at once.
std::string GroupKeyOf(const Request& member) {
  return KeyOf(member.process_set, member.group) + "\n" + std::to_string(member.group_hash);
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
  verdict.kept = status.ok();
  told_.push_back(std::move(verdict));
}

// A rank that comes late to a name that was settled meanwhile gets the same answer.
bool Coordinator::AnswerOwed(int rank, const Request& request, const std::string& key) {
  std::optional<Debt> debt;
  if (!request.group.empty()) {
    debt = TakeDebt(owed_groups_, GroupKeyOf(request), rank);
    if (!debt) debt = TakeDebt(owed_groups_, KeyOf(request.process_set, request.group), rank);
  }
  std::optional<Debt> alone = TakeDebt(owed_names_, key, rank);  // often both
  if (alone) debt = std::move(alone);
  if (!debt) return false;
  TellOne(rank, request, debt->status.ok() ? CheckLate(*debt, rank, request) : debt->status);
  return true;
}

std::optional<Coordinator::Debt> Coordinator::TakeDebt(std::map<std::string, Owed>& owed,
                                                       const std::string& key, int rank) {
  const auto it = owed.find(key);
  if (it == owed.end()) return std::nullopt;
  const auto debts = it->second.find(rank);
  if (debts == it->second.end()) return std::nullopt;
  const Debt oldest = debts->second.front();
  if (--debts->second.front().members == 0) debts->second.pop_front();
  if (debts->second.empty()) it->second.erase(debts);
  if (it->second.empty()) owed.erase(it);
  return oldest;
}

// Whether what a late rank asks for is what the others had asked for when they went on.
Status Coordinator::CheckLate(const Debt& debt, int rank, const Request& request) {
  std::vector<const Request*> sides = {debt.asked.get(), &request};
  std::vector<int> ranks = {debt.who, rank};
  if (rank < debt.who) std::swap(sides[0], sides[1]), std::swap(ranks[0], ranks[1]);
  HORON_TRY(CheckSame(sides, ranks, "operations", [](const Request& r) { return r.op; }));
  return CheckFloatingAlike(sides, ranks);
}

// Null if it is idle, or nobody has reported it ever.
Coordinator::Row* Coordinator::Reported(const std::string& key) {
  const auto it = rows_.find(key);
  return it == rows_.end() || it->second.reported == 0 ? nullptr : &it->second;
}

void Coordinator::Settle(const std::string& key, const Status& status) {
  const Row* const row = Reported(key);
  if (row == nullptr) return;  // settled with its group
  std::vector<SharedRequest> members;
  for (const SharedRequest& r : row->by_rank) {
    if (r && !r->group.empty()) members.push_back(r);
  }
  for (const SharedRequest& member : members) SettleGroup(*member, status);
  SettleRow(key, status, {});  // nothing left to do if it was in a group
}

// Ranks that have not reported the name owe it, but those in `told`.
void Coordinator::SettleRow(const std::string& key, const Status& status,
                            const std::set<int>& told) {
  Row* const reported = Reported(key);
  if (reported == nullptr) return;
  Row& row = *reported;
  if (std::exchange(row.ready, false)) std::erase(ready_, reported);
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    const int rank = (*row.ranks)[i];
    if (row.by_rank[i]) {
      if (!status.ok()) TellOne(rank, *row.by_rank[i], status);
    } else if (!left_[static_cast<size_t>(rank)] && Needs(row, rank) && !told.contains(rank)) {
      owed_names_[key][rank].push_back({1, status, row.first, FirstOf(row)});
    }
  }
  if (status.ok()) LeaveOut(row);
  Clear(row);
}

// Its first rank that has reported it.
int Coordinator::FirstOf(const Row& row) {
  const auto it = std::find_if(row.by_rank.begin(), row.by_rank.end(),
                               [](const SharedRequest& request) { return request != nullptr; });
  return (*row.ranks)[static_cast<size_t>(it - row.by_rank.begin())];
}

// All its members, on all ranks. A rank that has reported the group owes nothing more; one
// that has reported its tensors alone may still owe some of them; one that has reported nothing
// owes the group. What fails takes all groups of that name along; what is kept only this one.
void Coordinator::SettleGroup(const Request& member, const Status& status) {
  const std::string name = KeyOf(member.process_set, member.group);
  const std::string group_key = status.ok() ? GroupKeyOf(member) : name;
  std::erase_if(group_ready_, [&](const auto& item) {
    return status.ok() ? item.first == group_key : item.first.starts_with(name + "\n");
  });
  std::vector<std::string> keys;
  std::set<int> as_group, somehow;
  int members = 0, who = -1;
  SharedRequest asked;
  ProcessSets::Ranks ranks;
  for (const auto& [key, row] : rows_) {
    std::set<int> reported;
    bool in_group = false;
    for (size_t i = 0; i < row.by_rank.size(); ++i) {
      const SharedRequest& r = row.by_rank[i];
      if (!r) continue;
      reported.insert((*row.ranks)[i]);
      if (r->process_set != member.process_set || r->group != member.group) continue;
      if (status.ok() && r->group_hash != member.group_hash) continue;
      in_group = true;
      members = std::max(members, static_cast<int>(r->group_size));
      as_group.insert((*row.ranks)[i]);
      if (!asked) asked = r, who = (*row.ranks)[i];
    }
    if (!in_group) continue;
    keys.push_back(key);
    ranks = row.ranks;
    somehow.merge(reported);
  }
  if (keys.empty()) return;
  for (const std::string& key : keys) SettleRow(key, status, as_group);
  for (int rank : *ranks) {
    const bool there = !left_[static_cast<size_t>(rank)] && !Joined(rank);
    if (there && !somehow.contains(rank))
      owed_groups_[group_key][rank].push_back({members, status, asked, who});
  }
}

// What still waits in a removed set fails with the next decision.
void Coordinator::FailSet(int32_t set) {
  std::vector<std::string> keys;
  for (const auto& [key, row] : rows_) {
    if (row.reported > 0 && row.first->process_set == set) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    const Row* const row = Reported(key);
    if (row == nullptr) continue;  // settled with its group
    Settle(key, Status::InvalidArgument("tensor '" + row->first->name + "': process set " +
                                        std::to_string(set) + " was removed while it was pending"));
  }
  // Later submits are refused anyway.
  for (auto* owed : {&owed_names_, &owed_groups_}) {
    std::erase_if(*owed, [&](const auto& item) { return item.first.starts_with(KeyOf(set, "")); });
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
    if (row == nullptr) continue;  // settled with its group
    Settle(key, HasLeft(row->first->name, rank));
  }
  ForgetOwed(rank);
}

// Nobody waits for what it still owed.
void Coordinator::ForgetOwed(int rank) {
  for (auto* owed : {&owed_names_, &owed_groups_}) {
    for (auto& [key, debts] : *owed) debts.erase(rank);
    std::erase_if(*owed, [](const auto& item) { return item.second.empty(); });
  }
}

}  // namespace horon
