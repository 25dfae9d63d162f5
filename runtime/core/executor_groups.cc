// Executor: what a process set keeps between buckets, and which of its ranks run one.
#include <algorithm>
#include <utility>

#include "runtime/core/executor.h"

namespace horon {

Executor::Group& Executor::GroupOf(int32_t process_set, const ProcessSets::Ranks& ranks) {
  const auto known = groups_.find(process_set);
  if (known != groups_.end()) return known->second;
  std::erase_if(groups_, [](const auto& item) { return item.second.over; });
  Group& group = groups_[process_set];
  group.ranks = ranks;
  group.whole.emplace(*fabric_, *ranks, 0);
  return group;
}

// What GPUs keep for a process set ends soon after the set, on all members: they part there. All
// buckets that were agreed on have been started.
void Executor::ForgetRemoved() {
  const int removals = sets_->removals();
  if (removals == removals_seen_) return;
  bool all = true;
  for (auto& [process_set, group] : groups_) {
    if (group.over || sets_->Find(process_set)) continue;
    group.over = group.running == 0;
    if (group.over) gpu_road_.Forget(process_set);
    all = all && group.over;
  }
  if (all) removals_seen_ = removals;
}

// At its first bucket that all ranks run: they may wait for each other here.
void Executor::Connect(int32_t process_set, Group& group) {
  if (std::exchange(group.connected, true)) return;
  group.lane = make_lane_(process_set, *group.ranks);
  const Communicator& whole = *group.whole;
  // Only where all members see the same: in a mixed layout some have one transport to all others,
  // some two.
  const bool alike = whole.size() > 1 && (whole.all_apart() || whole.one_node());
  Transport* only = !group.lane && alike ? whole.only_transport() : nullptr;
  const Status prepared = only != nullptr ? only->Prepare(*group.ranks) : Status::Ok();
  if (!prepared.ok()) fault_ = prepared;
}

// Without the ranks that are away, if there are any. Then nothing streams, and no collective of a
// transport's own is used: those know the whole group only.
Communicator Executor::CommOf(const Group& group, const std::vector<int>& away, Tag base,
                              bool on_gpu) const {
  Lane* const lane = on_gpu ? nullptr : group.lane.get();
  if (away.empty()) return Communicator(*group.whole, base, lane);
  const Communicator whole(*group.whole, base, nullptr);
  std::vector<int> there;
  for (int member = 0; member < whole.size(); ++member) {
    if (!std::binary_search(away.begin(), away.end(), whole.global(member)))
      there.push_back(member);
  }
  const bool here = !std::binary_search(away.begin(), away.end(), fabric_->rank);
  return here ? whole.Sub(there, Communicator::kLevels - 1) : whole;
}

}  // namespace horon
