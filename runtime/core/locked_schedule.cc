#include "runtime/core/locked_schedule.h"

#include <algorithm>
#include <utility>

namespace horon {
namespace {

// Members of a batch came together before. When somebody is blocked and they do not, the job has
// changed, or the guess was wrong; else they may be on their way.
constexpr std::chrono::microseconds kPatienceAwaited{200}, kPatienceAlone{200000};
// A schedule that is left soon was none: the next one has to show itself for longer.
constexpr int kLeastPeriods = 3, kMostPeriods = 192;

// The op of what was agreed together, if it may be in one bucket with more of its kind. Null where
// it has several, and of ops that make their outputs: who calls those waits for them, mostly.
const Op* OpOf(const std::vector<uint64_t>& part, ResponseCache& cache) {
  const Op* const op = cache.Get(part[0])->what->op;
  const bool alike = op->fusable() && op->fills_output() &&
                     std::all_of(part.begin(), part.end(),
                                 [&](uint64_t id) { return cache.Get(id)->what->op == op; });
  return alike ? op : nullptr;
}

}  // namespace

bool LockedSchedule::Fits(const ResponseCache::Line& line) const {
  const Request& request = line.what->request;
  return request.process_set == 0 && request.device.kind == DeviceKind::kHost &&
         line.what->op != nullptr && line.what->op->when_late() == WhenLate::kWait &&
         line.what->op->lockable(request);
}

void LockedSchedule::Observe(uint64_t sequence, const RecycledVector<uint64_t>& order, bool plain,
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

void LockedSchedule::Lock(uint64_t sequence, ScheduleFinder::Batches parts, ResponseCache& cache) {
  since_ = sequence;
  locked_at_ = started_;
  next_ = 0;
  waiting_ = 0;
  stopped_ = false;
  plan_ = parts.size();
  int64_t bytes = batch_bytes_;  // of the last batch
  const Op* of_last = nullptr;
  for (size_t part = 0; part < parts.size(); ++part) {
    const Op* const before = std::exchange(of_last, OpOf(parts[part], cache));
    if (bytes >= batch_bytes_ || guesses_ == 0 || apart_.contains(parts[part][0]) ||
        of_last == nullptr || of_last != before) {
      batches_.emplace_back();
      missing_.push_back(0);
      first_part_.push_back(part);
      bytes = 0;
    }
    const int index = static_cast<int>(batches_.size()) - 1;
    plan_ = plan_ * 31 + parts[part].size() + static_cast<uint64_t>(index);
    for (uint64_t id : parts[part]) {
      const ResponseCache::Line* const line = cache.Get(id);
      bytes += line->what->op->FusionBytes(line->what->bytes, line->what->request, line->agreed);
      line->what->batch.store(index, std::memory_order_relaxed);
      batches_.back().push_back({line->what, line->agreed});
      ++missing_.back();
      plan_ = plan_ * 31 + line->what->tensor_id;
      if (line->what->slot >= 0) Arrived(*line->what);
    }
  }
  SawArrivals();
  first_part_.push_back(parts.size());
  parts_ = std::move(parts);
}

void LockedSchedule::Arrived(const Registration& what) {
  --missing_[static_cast<size_t>(what.batch.load(std::memory_order_relaxed))];
  ++waiting_;
}

void LockedSchedule::SawArrivals() {
  if (waiting_ > 0) waiting_since_ = Clock::now();
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

uint64_t LockedSchedule::Uneven() const {
  if (!locked() || stopped_) return 0;
  auto item = batches_[next_].begin();
  std::optional<bool> whole;  // whether all before is pending
  for (size_t part = first_part_[next_]; part < first_part_[next_ + 1]; ++part) {
    const auto end = item + static_cast<std::ptrdiff_t>(parts_[part].size());
    const bool pending = std::all_of(item, end, [](const Item& i) { return i.what->slot >= 0; });
    if (whole && *whole != pending) return parts_[part][0];
    whole = pending;
    item = end;
  }
  return 0;
}

void LockedSchedule::Unlock(uint64_t first, uint64_t uneven) {
  const uint64_t periods = (first - locked_at_) / batches_.size();
  finder_.Reset();
  if (uneven != 0 && apart_.insert(uneven).second && guesses_ > 0) {
    --guesses_;
    finder_.set_periods(kLeastPeriods);
    started_ = first;
    recall_.Remember(std::move(parts_));
    Clear();
    return;
  }
  const bool soon = periods < static_cast<uint64_t>(finder_.periods());
  finder_.set_periods(soon ? std::min(2 * finder_.periods(), kMostPeriods) : kLeastPeriods);
  started_ = first;
  recall_.Remember(periods > 0 ? std::move(parts_) : ScheduleFinder::Batches());
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
  first_part_.clear();
  stopped_ = false;
}

}  // namespace horon
