#include "runtime/core/schedule_recall.h"

#include <algorithm>
#include <utility>

namespace horon {

void ScheduleRecall::Remember(Batches batches) {
  batches_ = std::move(batches);
  batch_of_.clear();
  seen_.clear();
  for (size_t i = 0; i < batches_.size(); ++i) {
    for (uint64_t id : batches_[i]) batch_of_[id] = i;
  }
}

ScheduleRecall::Batches ScheduleRecall::Observe(const RecycledVector<uint64_t>& order) {
  if (batches_.empty()) return {};
  for (uint64_t id : order) {
    const auto found = batch_of_.find(id);
    if (found == batch_of_.end() || seen_.contains(id)) seen_.clear();
    if (found == batch_of_.end()) continue;
    if (seen_.empty()) first_ = found->second;
    seen_.insert(id);
  }
  if (seen_.size() < batch_of_.size()) return {};
  Batches rotated = batches_;
  std::rotate(rotated.begin(), rotated.begin() + static_cast<std::ptrdiff_t>(first_),
              rotated.end());
  return rotated;
}

}  // namespace horon
