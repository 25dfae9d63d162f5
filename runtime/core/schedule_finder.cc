#include "runtime/core/schedule_finder.h"

#include <algorithm>
#include <utility>

namespace horon {

ScheduleFinder::Batches ScheduleFinder::Observe(const RecycledVector<uint64_t>& order) {
  ++decision_;
  Align(order.size());
  for (uint64_t id : order) {
    if (now_.contains(id)) EndPeriod();
    if (now_.size() >= kMost) Reset();
    now_[id] = decision_;
    order_.push_back(id);
    known_ += last_.contains(id);
  }
  if (now_.empty() || !Same() || equal_ + 2 < periods_) return {};
  return Cut();
}

// The first period may have begun in the middle of a step, behind a decision that was no part of a
// steady one. Where whole steps are agreed at once no decision ever ends with such a period: it has
// to begin with one of them.
void ScheduleFinder::Align(size_t decided) {
  const bool whole = !last_.empty() && decided == last_.size();
  if (std::exchange(whole_, whole) && whole && !now_.empty() && now_.size() < last_.size()) {
    now_.clear();
    order_.clear();
    known_ = 0;
    equal_ = std::min(equal_, std::max(0, periods_ - 3));  // one more, which shows how it is cut
  }
}

void ScheduleFinder::EndPeriod() {
  equal_ = Same() ? equal_ + 1 : 0;
  last_ = std::exchange(now_, {});
  order_.clear();
  known_ = 0;
}

void ScheduleFinder::Reset() {
  last_.clear();
  now_.clear();
  order_.clear();
  known_ = 0;
  equal_ = 0;
  whole_ = false;
}

// Neighbours belong together if they were agreed together, in this period and in the last.
ScheduleFinder::Batches ScheduleFinder::Cut() const {
  Batches batches;
  for (size_t i = 0; i < order_.size(); ++i) {
    const uint64_t id = order_[i], before = i == 0 ? 0 : order_[i - 1];
    const bool together =
        i > 0 && now_.at(id) == now_.at(before) && last_.at(id) == last_.at(before);
    if (!together) batches.emplace_back();
    batches.back().push_back(id);
  }
  return batches;
}

}  // namespace horon
