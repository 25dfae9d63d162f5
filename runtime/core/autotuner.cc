#include "runtime/core/autotuner.h"

#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "runtime/base/absolute_path.h"
#include "runtime/base/log.h"
#include "runtime/base/replace_file.h"
#include "runtime/base/system_error.h"
#include "runtime/core/tuning_file.h"

namespace horon {
namespace {

constexpr std::string_view kLogComponent = "autotune";
constexpr int kMostOthers = 30;  // steps of another size in a row, before they are the ones

}  // namespace

Autotuner::Autotuner(const Config& config, TuningLimits limits, Counters& counters)
    : measures_(config.autotune),
      log_path_(AbsolutePath(config.autotune_log)),
      file_path_(AbsolutePath(config.autotune_file)),
      warm_up_(config.autotune_warmup * config.autotune_steps),
      steps_(config.autotune_steps),
      limits_(limits),
      wanted_(TuningOf(config)),
      samples_(counters["autotune.samples"]),
      settings_(counters["autotune.settings"]) {
  limits_.most_samples = config.autotune_samples;
}

Result<std::unique_ptr<Autotuner>> Autotuner::Make(const Config& config, TuningLimits limits,
                                                   Counters& counters) {
  if (!config.autotune && config.autotune_file.empty()) return std::unique_ptr<Autotuner>();
  std::unique_ptr<Autotuner> made(new Autotuner(config, limits, counters));
  HORON_TRY(made->Open());
  return made;
}

Status Autotuner::Open() {
  if (!file_path_.empty()) HORON_TRY(Replay());
  if (!measures_ || log_path_.empty()) return Status::Ok();
  log_.open(log_path_);
  log_ << "sample,seconds,setting,against,fusion_bytes,chunk_bytes,slice_bytes,hierarchical,steps,"
          "step_seconds,bytes_per_second,verdict"
       << std::endl;
  if (log_) return Status::Ok();
  return Status::InvalidArgument("HORON_AUTOTUNE_LOG: " + log_path_ +
                                 " cannot be written: " + SystemError(errno));
}

// What an earlier job has found.
Status Autotuner::Replay() {
  std::ifstream file(file_path_);
  if (!file && measures_) return Status::Ok();  // it is to be made
  const std::string name = "HORON_AUTOTUNE_FILE: " + file_path_;
  if (!file)
    return Status::InvalidArgument(name + " cannot be read: " + SystemError(errno) +
                                   "; with HORON_AUTOTUNE=1 it is made");
  std::ostringstream text;
  text << file.rdbuf();
  Result<Tuning> found = ParseTuning(text.str());
  if (!found.ok()) return Status::InvalidArgument(name + ": " + found.status().message());
  wanted_ = found.value();
  measures_ = false;
  return Status::Ok();
}

void Autotuner::Saw(const Tuning& tuning, std::span<const Entry> entries, Clock::time_point now) {
  if (done()) return;
  if (tuning != wanted_) settling_ = kSettling;
  for (const Entry& entry : entries) {
    if (const auto step = finder_.Saw(entry.what->tensor_id, entry.what->bytes, now))
      Found(*step, now);
    if (done()) return;
  }
}

void Autotuner::Found(const FoundStep& step, Clock::time_point now) {
  if (settling_ > 0) {
    --settling_;
    return;
  }
  if (!Fits(step)) return;
  if (warm_up_ > 0) {
    --warm_up_;
    return;
  }
  if (!search_) {
    limits_.step_bytes = step_bytes_;
    search_.emplace(wanted_, limits_);
    begun_ = now;
    if (search_->done()) return Finish(now);
  }
  sample_.push_back(std::chrono::duration<double>(step.time).count());
  if (static_cast<int64_t>(sample_.size()) == steps_) EndSample(now);
}

// Steps that differ from the others, such as those that reduce a metric too, are left out.
bool Autotuner::Fits(const FoundStep& step) {
  if (step.bytes == step_bytes_) {
    others_ = 0;
    return true;
  }
  if (step_bytes_ == 0 || ++others_ > kMostOthers) {
    step_bytes_ = step.bytes;
    others_ = 0;
    sample_.clear();
  }
  return false;
}

void Autotuner::EndSample(Clock::time_point now) {
  const auto middle = sample_.begin() + static_cast<std::ptrdiff_t>(sample_.size() / 2);
  std::nth_element(sample_.begin(), middle, sample_.end());
  const TuningSearch::Sample sample = search_->Measured(*middle);
  last_[sample.setting] = sample.seconds;
  samples_.Add();
  settings_.Add(static_cast<int64_t>(search_->settings().size()) - settings_.value());
  Write(sample, steps_, now);
  sample_.clear();
  if (search_->current() != wanted_) settling_ = kSettling;
  wanted_ = search_->current();
  if (search_->done()) Finish(now);
}

void Autotuner::Write(const TuningSearch::Sample& sample, int64_t steps, Clock::time_point now) {
  const Tuning& tuning = search_->settings()[sample.setting];
  const double rate = sample.seconds > 0 ? static_cast<double>(step_bytes_) / sample.seconds : 0.0;
  char line[320];
  std::snprintf(
      line, sizeof(line), "%d,%.3f,%zu,%zu,%lld,%lld,%lld,%d,%lld,%.9f,%.0f,%s\n", sample.number,
      std::chrono::duration<double>(now - *begun_).count(), sample.setting, sample.against,
      static_cast<long long>(tuning.fusion_bytes), static_cast<long long>(tuning.chunk_bytes),
      static_cast<long long>(tuning.slice_bytes), tuning.hierarchical ? 1 : 0,
      static_cast<long long>(steps), sample.seconds, rate, std::string(sample.verdict).c_str());
  log_ << line << std::flush;
}

// The log's last line is no sample: it says what was chosen.
void Autotuner::Finish(Clock::time_point now) {
  wanted_ = search_->current();
  const auto place = std::ranges::find(search_->settings(), wanted_);
  const auto chosen = static_cast<size_t>(place - search_->settings().begin());
  Write({static_cast<int>(samples_.value()), chosen, 0, last_[chosen], "chosen"}, 0, now);
  std::string found = TuningText(wanted_);
  std::ranges::replace(found, '\n', ' ');
  Log(LogLevel::kInfo, kLogComponent,
      std::string(chosen == 0 ? "nothing was faster than the setting of the start: " : "kept: ") +
          found);
  if (file_path_.empty()) return;
  const Status written = ReplaceFile("HORON_AUTOTUNE_FILE", file_path_, TuningText(wanted_));
  if (!written.ok()) Log(LogLevel::kWarn, kLogComponent, written.message());
}

}  // namespace horon
