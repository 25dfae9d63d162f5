#include "runtime/core/tuning_search.h"

#include <algorithm>

namespace horon {
namespace {

enum Property { kFusion, kChunk, kSlice, kHierarchy, kProperties };

constexpr int64_t kMiB = 1 << 20, kLeastChunk = 32 << 10, kLeastSlice = 128 << 10;
constexpr std::string_view kNothing, kIsFaster = "faster", kIsSlower = "slower",
                                     kSame = "no difference";

}  // namespace

TuningSearch::TuningSearch(const Tuning& start, const TuningLimits& limits)
    : limits_(limits), settings_{start} {
  NextChallenger();
}

size_t TuningSearch::measured() const {
  const bool middle = round_.size() == 1 || round_.size() == 2;
  return !done_ && middle ? challenger_ : best_;
}

// Of the property that is being changed, nearest to the least first, so the last is tried first.
std::vector<Tuning> TuningSearch::Alternatives() const {
  std::vector<Tuning> found;
  const auto add = [&](auto change) {
    Tuning other = settings_[best_];
    change(other);
    if (std::ranges::find(settings_, other) == settings_.end()) found.push_back(other);
  };
  const int64_t whole = limits_.step_bytes;
  if (property_ == kFusion) {
    // All that are no smaller than a step are one.
    for (int64_t bytes = kMiB / 4; bytes < whole; bytes *= 4)
      add([&](Tuning& t) { t.fusion_bytes = bytes; });
    if (settings_[best_].fusion_bytes < whole) add([&](Tuning& t) { t.fusion_bytes = whole; });
  } else if (property_ == kChunk) {
    for (int64_t bytes = limits_.chunk_bytes / 2; bytes >= kLeastChunk; bytes /= 2)
      add([&](Tuning& t) { t.chunk_bytes = bytes; });
  } else if (property_ == kSlice) {
    const int64_t usual = limits_.slice_bytes;
    for (int64_t bytes = std::max(usual / 4, kLeastSlice); bytes <= 4 * usual; bytes *= 2) {
      if (bytes != usual) add([&](Tuning& t) { t.slice_bytes = bytes; });
    }
  } else if (property_ == kHierarchy && limits_.may_flatten) {
    add([](Tuning& t) { t.hierarchical = !t.hierarchical; });
  }
  return found;
}

size_t TuningSearch::PlaceOf(const Tuning& tuning) {
  const auto found = std::ranges::find(settings_, tuning);
  const auto place = static_cast<size_t>(found - settings_.begin());
  if (found == settings_.end()) settings_.push_back(tuning);
  return place;
}

void TuningSearch::NextChallenger() {
  round_.clear();
  ratios_.clear();
  const int64_t left = limits_.most_samples - samples_;
  while (to_try_.empty() && ++property_ < kProperties) to_try_ = Alternatives();
  if (to_try_.empty() || left < 4 * (kRounds + kLastRounds)) return BeginLastComparison();
  challenger_ = PlaceOf(to_try_.back());
  to_try_.pop_back();
}

void TuningSearch::BeginLastComparison() {
  done_ = best_ == 0;
  last_ = true;
  challenger_ = best_;
  best_ = 0;
}

TuningSearch::Sample TuningSearch::Measured(double seconds) {
  Sample sample{++samples_, measured(), best_, seconds, kNothing};
  round_.push_back(seconds);
  if (round_.size() == 4) sample.verdict = EndRound();
  return sample;
}

std::string_view TuningSearch::EndRound() {
  ratios_.push_back((round_[1] + round_[2]) / (round_[0] + round_[3]));
  round_.clear();
  const int rounds = last_ ? kLastRounds : kRounds;
  const bool hopeless = !last_ && ratios_.back() >= kFaster;
  if (!hopeless && static_cast<int>(ratios_.size()) < rounds) return kNothing;
  const std::string_view verdict = Judge();
  if (verdict == kIsFaster) best_ = challenger_;
  if (last_) {
    done_ = true;
  } else {
    NextChallenger();
  }
  return verdict;
}

// A round that is not clearly won is the last one, but at the end.
bool TuningSearch::Won() const {
  if (!last_) return ratios_.size() == kRounds && ratios_.back() < kFaster;
  std::vector<double> sorted = ratios_;
  std::ranges::sort(sorted);
  const double median = (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  const auto worse = std::ranges::count_if(ratios_, [](double ratio) { return ratio >= 1.0; });
  return median < kFaster && worse <= 1;
}

std::string_view TuningSearch::Judge() {
  if (Won()) return kIsFaster;
  return ratios_.back() > 1 / kFaster ? kIsSlower : kSame;
}

}  // namespace horon
