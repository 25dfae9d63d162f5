#include "runtime/core/timeline.h"

#include <exception>
#include <utility>

#include "runtime/base/log.h"

namespace horon {

Timeline::Timeline(int rank, bool same_clock, Counters& counters)
    : rank_(rank),
      same_clock_(same_clock),
      counters_(counters),
      events_(counters["timeline.events"]),
      dropped_(counters["timeline.dropped"]),
      progress_(std::make_shared<TimelineProgress>()) {}

Timeline::~Timeline() { Close(); }

void Timeline::Obey(const TimelineOrder& order) {
  std::erase_if(ended_, [](const auto& recording) { return recording->written(); });
  End(order.begin ? 0 : order.number);
  if (!order.begin) return;
  order_ = order;
  in_window_ = order.first_step == 0;
  try {
    now_ = std::make_unique<TimelineRecording>(rank_, order, progress_, counters_);
  } catch (const std::exception& e) {  // no thread to be had: no reason to stop the job
    Log(LogLevel::kWarn, "timeline", std::string("nothing is recorded: ") + e.what());
    progress_->Reached(order.number);
    return;
  }
  if (same_clock_ || clock_.known()) {
    now_->SetClock(clock_.offset(), same_clock_ ? 0 : clock_.bound());
  } else {
    questions_left_ = kQuestions;
  }
  TakeNotes(now_->notes());
  recording_.store(true, std::memory_order_relaxed);
  progress_->Reached(order.number);
}

void Timeline::End(uint64_t number) {
  recording_.store(false, std::memory_order_relaxed);
  TakeNotes(nullptr);
  if (!now_) {
    progress_->Reached(number);
    return;
  }
  now_->End(number);
  ended_.push_back(std::move(now_));
}

bool Timeline::Wants(uint64_t step) {
  if (!recording()) return false;
  in_window_ = step >= order_.first_step && step < order_.end_step;
  return in_window_;
}

void Timeline::Add(TimelineEvent&& event) {
  if (!now_) return;
  (now_->Put(std::move(event)) ? events_ : dropped_).Add();
}

void Timeline::MarkCycle(int64_t now) {
  if (!order_.mark_cycles || !in_window_ || now == 0) return;
  TimelineEvent cycle;
  cycle.started = now;
  Add(std::move(cycle));
}

void Timeline::TakeNotes(std::shared_ptr<TimelineNotes> notes) {
  MutexLock lock(notes_mutex_);
  notes_ = std::move(notes);
}

bool Timeline::Note(TimelineNote&& note) {
  MutexLock lock(notes_mutex_);
  if (!notes_) return false;
  const bool taken = notes_->Put(std::move(note));
  (taken ? events_ : dropped_).Add();
  return taken;
}

int64_t Timeline::AskClock() {
  asked_ = true;
  return SteadyNow();
}

void Timeline::HearClock(const ClockAnswer& answer, int64_t told) {
  if (answer.rank != rank_ || !std::exchange(asked_, false)) return;
  clock_.Add({answer.asked, answer.heard, told, SteadyNow()});
  if (--questions_left_ > 0 || !now_) return;
  now_->SetClock(clock_.offset(), clock_.bound());
}

bool Timeline::Await(uint64_t number, std::chrono::milliseconds limit) {
  return progress_->Await(number, limit);
}

void Timeline::Close() {
  End(0);
  ended_.clear();
}

}  // namespace horon
