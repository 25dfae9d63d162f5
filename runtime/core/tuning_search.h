// TuningSearch: which tuning is to be measured next, and which is the best. Pure: it is told what
// each sample took, and nothing else.
//
// One property after the other is changed while the others keep their best value. A new tuning is
// compared with the best one in rounds of four samples, in the order best, new, new, best, so that
// a machine that grows slower meanwhile harms both alike. One round shows what is clearly slower or
// the same; what seems faster has to be so in three. At the end the winner is compared with the
// tuning of the start once more, and given up unless it is faster.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "runtime/core/tuning.h"

namespace horon {

// What may be tried.
struct TuningLimits {
  int64_t step_bytes = 0;      // what a step reduces: a larger bucket than that is none
  int64_t chunk_bytes = 0;     // the most a chunk may have; 0: there are no chunks
  int64_t slice_bytes = 0;     // what 0 stands for; 0: there are no slices
  bool may_flatten = false;    // whether the way over nodes may change, and with it the sums
  int64_t most_samples = 200;  // in all
};

class TuningSearch {
 public:
  struct Sample {
    int number = 0;            // 1, 2, ...
    size_t setting = 0;        // the tuning that was measured: its place in settings()
    size_t against = 0;        // the best so far
    double seconds = 0;        // of a step
    std::string_view verdict;  // of the comparison that it ended; else empty
  };

  TuningSearch(const Tuning& start, const TuningLimits& limits);

  bool done() const { return done_; }
  // To be measured next; when done, the tuning to keep.
  const Tuning& current() const { return settings_[measured()]; }
  // All that were tried, in the order in which they first were; 0 is the one of the start.
  const std::vector<Tuning>& settings() const { return settings_; }
  // What a step took under current().
  Sample Measured(double seconds);

 private:
  static constexpr int kRounds = 3, kLastRounds = 6;
  static constexpr double kFaster = 0.98;  // below this ratio of times

  size_t measured() const;
  std::vector<Tuning> Alternatives() const;
  size_t PlaceOf(const Tuning& tuning);
  void NextChallenger();
  void BeginLastComparison();
  std::string_view EndRound();
  bool Won() const;
  std::string_view Judge();

  TuningLimits limits_;
  std::vector<Tuning> settings_;
  size_t best_ = 0, challenger_ = 0;
  int property_ = -1;           // that is being changed
  std::vector<Tuning> to_try_;  // last first
  std::vector<double> round_;   // samples of the round
  std::vector<double> ratios_;  // challenger over best, by round
  int samples_ = 0;
  bool last_ = false, done_ = false;  // comparing the start with the winner
};

}  // namespace horon
