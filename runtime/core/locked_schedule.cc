#include "runtime/core/locked_schedule.h"

#include <algorithm>

namespace horon {
namespace {

// Members of a batch came together before. When somebody is blocked and they do not, the job has
// changed; else they may be on their way.
constexpr std::chrono::microseconds kPatienceAwaited{200}, kPatienceAlone{200000};
// A schedule that is left soon was none: the next one has to show itself for longer.
constexpr int kLeastPeriods = 3, kMostPeriods = 192;

}  // namespace

bool LockedSchedule::Fits(const ResponseCache::Line& line) const {
  const Request& request = line.what->request;
  return request.process_set == 0 && request.device.kind == DeviceKind::kHost &&
         line.what->op != nullptr && line.what->op->lockable(request);
}

void LockedSchedule::Observe(uint64_t sequence, const std::vector<uint64_t>& order, bool plain,
                             bool allowed, ResponseCache& cache) {
  if (!possible_ || locked()) return;
  const bool fits = plain && std::all_of(order.begin(), order.end(), [&](uint64_t id) {
                      const ResponseCache::Line* const line = id == 0 ? nullptr : cache.Get(id);
                      return line != nullptr && Fits(*line);
                    });
  if (!fits || !allowed) {
    finder_.Reset();
    recall_.Interrupt();
    return;
  }
  ScheduleFinder::Batches found = finder_.Observe(order), left = recall_.Observe(order);
  if (found.empty()) found = std::move(left);
  if (!found.empty()) Lock(sequence, std::move(found), cache);
}

void LockedSchedule::Lock(uint64_t sequence, ScheduleFinder::Batches batches,
                          ResponseCache& cache) {
  since_ = sequence;
  locked_at_ = started_;
  next_ = 0;
  waiting_ = 0;
  stopped_ = false;
  plan_ = batches.size();
  for (const auto& ids : batches) {
    const int index = static_cast<int>(batches_.size());
    plan_ = plan_ * 31 + ids.size();
    auto& batch = batches_.emplace_back();
    missing_.push_back(ids.size());
    for (uint64_t id : ids) {
      const ResponseCache::Line* const line = cache.Get(id);
      line->what->batch.store(index, std::memory_order_relaxed);
      batch.push_back({line->what, line->agreed});
      plan_ = plan_ * 31 + line->what->tensor_id;
      if (line->what->slot >= 0) Arrived(*line->what);
    }
  }
  ids_ = std::move(batches);
}

void LockedSchedule::Arrived(const Registration& what) {
  --missing_[static_cast<size_t>(what.batch.load(std::memory_order_relaxed))];
  if (waiting_++ == 0) waiting_since_ = Clock::now();
}

const std::vector<LockedSchedule::Item>* LockedSchedule::Next() {
  if (!locked() || stopped_ || missing_[next_] > 0) return nullptr;
  const std::vector<Item>& batch = batches_[next_];
  missing_[next_] = batch.size();
  waiting_ -= batch.size();
  if (waiting_ > 0) waiting_since_ = Clock::now();
  next_ = (next_ + 1) % batches_.size();
  ++started_;
  return &batch;
}

LockedSchedule::Clock::time_point LockedSchedule::patience_ends(bool awaited) const {
  if (!locked() || stopped_ || waiting_ == 0) return Clock::time_point::max();
  return waiting_since_ + (awaited ? kPatienceAwaited : kPatienceAlone);
}

void LockedSchedule::Unlock(uint64_t first) {
  const uint64_t periods = (first - locked_at_) / batches_.size();
  finder_.Reset();
  const bool soon = periods < static_cast<uint64_t>(finder_.periods());
  finder_.set_periods(soon ? std::min(2 * finder_.periods(), kMostPeriods) : kLeastPeriods);
  started_ = first;
  recall_.Remember(periods > 0 ? std::move(ids_) : ScheduleFinder::Batches());
  Clear();
}

std::vector<SharedRegistration> LockedSchedule::Members() const {
  std::vector<SharedRegistration> members;
  for (const auto& batch : batches_) {
    for (const Item& item : batch) members.push_back(item.what);
  }
  return members;
}

void LockedSchedule::Clear() {
  for (const auto& batch : batches_) {
    for (const Item& item : batch) item.what->batch.store(-1, std::memory_order_relaxed);
  }
  batches_.clear();
  missing_.clear();
  stopped_ = false;
}

}  // namespace horon
