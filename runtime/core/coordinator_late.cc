// What is not waited for any longer. An op that does not wait for ever (Op::when_late) is settled
// without the ranks that have not come, and these are told the same, as often as they owe it, when
// they come: so the n-th call of a name stays the n-th on every rank.
#include <algorithm>
#include <map>

#include "runtime/base/seconds.h"
#include "runtime/core/coordinator.h"

namespace horon {
namespace {

std::string HasNotCome(const std::string& name, size_t more, const std::vector<int>& missing,
                       std::chrono::milliseconds patience) {
  return "tensor '" + name + "'" + (more > 0 ? " and " + std::to_string(more) + " more" : "") +
         ": " + Listed(missing) + (missing.size() == 1 ? " has" : " have") + " not come for " +
         Seconds(patience) + " (HORON_GOSSIP_TIMEOUT)";
}

}  // namespace

// Two groups of one name may be on their way at once.
bool Coordinator::InGroup(const Row& row, const Request& member) {
  return row.reported > 0 && row.first->process_set == member.process_set &&
         row.first->group == member.group && row.first->group_hash == member.group_hash;
}

WhenLate Coordinator::WhenLateOf(const std::string& spec) const {
  if (IsBuiltIn(spec)) return spec == kFormSetInTime ? WhenLate::kFail : WhenLate::kWait;
  const auto op = ops_->Find(spec);
  return op.ok() ? op.value()->when_late() : WhenLate::kWait;
}

// A group does what all its members do. What belongs to different groups the stall judge settles.
WhenLate Coordinator::WhenLateOf(const Row& row) const {
  if (row.patient || row.mixed) return WhenLate::kWait;
  const WhenLate when = WhenLateOf(row.first->op);
  if (row.first->group.empty()) return when;
  for (const auto& [key, other] : rows_) {
    if (!InGroup(other, *row.first)) continue;
    if (other.mixed || WhenLateOf(other.first->op) != when) return WhenLate::kWait;
  }
  return when;
}

std::vector<std::string> Coordinator::JudgeLate(Time now) {
  if (now < late_at_) return {};
  late_at_ = Time::max();
  std::vector<std::string> due;
  for (const auto& [key, row] : rows_) {
    if (row.reported == 0 || row.ready || row.patient) continue;
    if (now >= row.since + patience_) {
      due.push_back(key);
    } else {
      late_at_ = std::min(late_at_, row.since + patience_);
    }
  }
  LeftOut left_out;
  for (const std::string& key : due) {
    const Row* const row = Reported(key);  // null: settled with its group
    const WhenLate when = row != nullptr ? WhenLateOf(*row) : WhenLate::kWait;
    if (when != WhenLate::kWait) SettleLate(*row, when, left_out);
  }
  Sweep();
  std::vector<std::string> sentences;
  for (const auto& [missing, tensors] : left_out) {
    sentences.push_back(HasNotCome(tensors.first, tensors.count - 1, missing, patience_) +
                        ": this round is left out, all ranks keep what they have");
  }
  return sentences;
}

void Coordinator::SettleLate(const Row& row, WhenLate when, LeftOut& left_out) {
  const std::string key = *row.key, name = row.first->name;
  std::vector<int> missing;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    const int rank = (*row.ranks)[i];
    if (!row.by_rank[i] && Needs(row, rank)) missing.push_back(rank);
  }
  if (missing.empty()) return;  // it waits for its group, of which another member misses some
  size_t tensors = 1;  // with those of its group, which are settled with it
  Status same = CheckCame(row);
  for (const auto& [other_key, other] : rows_) {
    if (row.first->group.empty() || &other == &row || !InGroup(other, *row.first)) continue;
    ++tensors;
    if (same.ok()) same = CheckCame(other);
  }
  if (!same.ok()) return Settle(key, same);
  if (when == WhenLate::kFail)
    return Settle(key, Status::Late(HasNotCome(name, 0, missing, patience_)));
  auto& all = left_out[missing];
  if (all.count == 0) all.first = name;
  all.count += tensors;
  Settle(key, Status::Ok());
}

// Whether the ranks that have reported it ask for the same, as far as that can be told without the
// others.
Status Coordinator::CheckCame(const Row& row) const {
  std::vector<const Request*> came;
  std::vector<int> who;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    if (row.by_rank[i]) came.push_back(row.by_rank[i].get()), who.push_back((*row.ranks)[i]);
  }
  HORON_TRY(CheckSame(came, who, "operations", [](const Request& r) { return r.op; }));
  return WhenLateOf(row.first->op) == WhenLate::kKeep ? CheckFloatingAlike(came, who)
                                                      : Status::Ok();
}

// All ranks count the call now, also those that have not come, or have joined: the next round is
// the same one on each.
void Coordinator::LeaveOut(const Row& row) {
  Verdict verdict;
  verdict.process_set = row.first->process_set;
  verdict.name = row.first->name;
  verdict.kept = true;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    if (!row.by_rank[i]) verdict.joined.push_back((*row.ranks)[i]);
  }
  verdict.stand_in = *row.first;
  told_.push_back(std::move(verdict));
}

}  // namespace horon
