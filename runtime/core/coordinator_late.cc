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

bool Coordinator::InGroup(const Row& row, int32_t set, const std::string& group) {
  return row.reported > 0 && row.first->process_set == set && row.first->group == group;
}

// A group does what all its members do. What belongs to different groups the stall judge settles.
WhenLate Coordinator::WhenLateOf(const Row& row) const {
  const auto of = [this](const std::string& spec) {
    const auto op = IsBuiltIn(spec) ? Result<Op*>(nullptr) : ops_->Find(spec);
    return op.ok() && op.value() != nullptr ? op.value()->when_late() : WhenLate::kWait;
  };
  const WhenLate when = of(row.first->op);
  if (when == WhenLate::kWait || row.first->group.empty()) return when;
  for (const auto& [key, other] : rows_) {
    if (!InGroup(other, row.first->process_set, row.first->group)) continue;
    if (other.mixed || of(other.first->op) != when) return WhenLate::kWait;
  }
  return row.mixed ? WhenLate::kWait : when;
}

std::vector<std::string> Coordinator::JudgeLate(Time now) {
  if (now < late_at_) return {};
  late_at_ = Time::max();
  std::vector<std::string> due;
  for (const auto& [key, row] : rows_) {
    if (row.reported == 0 || row.ready) continue;
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
  std::vector<const Request*> came;
  std::vector<int> who, missing;
  for (size_t i = 0; i < row.by_rank.size(); ++i) {
    const int rank = (*row.ranks)[i];
    if (row.by_rank[i]) {
      came.push_back(row.by_rank[i].get()), who.push_back(rank);
    } else if (Needs(row, rank)) {
      missing.push_back(rank);
    }
  }
  if (missing.empty()) return;  // it waits for its group, of which another member misses some
  const Status same = CheckSame(came, who, "operations", [](const Request& r) { return r.op; });
  if (!same.ok()) return Settle(key, same);
  const Status alike = when == WhenLate::kKeep ? CheckFloatingAlike(came, who) : Status::Ok();
  if (!alike.ok()) return Settle(key, alike);
  if (when == WhenLate::kFail)
    return Settle(key, Status::Aborted(HasNotCome(name, 0, missing, patience_)));
  auto& tensors = left_out[missing];
  if (tensors.count == 0) tensors.first = name;
  tensors.count += TensorsOf(row);
  Settle(key, Status::Ok());
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

// Those of its group, which are settled with it.
size_t Coordinator::TensorsOf(const Row& row) const {
  if (row.first->group.empty()) return 1;
  return static_cast<size_t>(std::count_if(rows_.begin(), rows_.end(), [&](const auto& item) {
    return InGroup(item.second, row.first->process_set, row.first->group);
  }));
}

}  // namespace horon
