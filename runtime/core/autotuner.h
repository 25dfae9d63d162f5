// Autotuner: measures a training job under several tunings, and keeps the fastest (HORON_AUTOTUNE).
//
// Rank 0's runtime shows it every batch that starts, and agrees with all ranks on the tuning that
// it asks for (Negotiator::Tune). What a step takes is the time from the start of its first tensor
// to that of the next step's; a sample is the median of some steps. tuning_search.h decides. Holder
// of the baton only.
#pragma once

#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/core/entry.h"
#include "runtime/core/step_finder.h"
#include "runtime/core/tuning_search.h"

namespace horon {

class Autotuner {
 public:
  using Clock = std::chrono::steady_clock;

  // As HORON_AUTOTUNE, _LOG, _FILE, ... say; null if they ask for nothing. kInvalidArgument: a file
  // cannot be read or written. `limits`: what the job's ranks leave to choose; step_bytes is found.
  static Result<std::unique_ptr<Autotuner>> Make(const Config& config, TuningLimits limits,
                                                 Counters& counters);

  // The tuning to agree on; it stays so until Saw changes it.
  const Tuning& wanted() const { return wanted_; }
  // Nothing will change any more.
  bool done() const { return !measures_ || (search_ && search_->done()); }
  // A batch starts, which was agreed under this tuning.
  void Saw(const Tuning& tuning, std::span<const Entry> entries, Clock::time_point now);

 private:
  // After a change the locked schedule is left, and found again.
  static constexpr int kSettling = 3;

  Autotuner(const Config& config, TuningLimits limits, Counters& counters);
  Status Open();
  Status Replay();
  void Found(const FoundStep& step, Clock::time_point now);
  bool Fits(const FoundStep& step);
  void EndSample(Clock::time_point now);
  void Write(const TuningSearch::Sample& sample, int64_t steps, Clock::time_point now);
  void Finish(Clock::time_point now);

  bool measures_;
  std::string log_path_, file_path_;
  int64_t warm_up_, steps_;
  TuningLimits limits_;
  Tuning wanted_;
  std::ofstream log_;
  StepFinder finder_;
  std::optional<TuningSearch> search_;  // once it is known what a step is
  int64_t step_bytes_ = 0;              // of the steps that are measured
  int settling_ = kSettling, others_ = 0;
  std::vector<double> sample_;     // seconds
  std::map<size_t, double> last_;  // seconds of a setting's last sample
  std::optional<Clock::time_point> begun_;
  Counter &samples_, &settings_;
};

}  // namespace horon
