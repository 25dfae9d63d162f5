// Timeline: records where each tensor's time goes, and writes it to one file for all ranks.
//
// Rank 0 orders a beginning and an end; the orders travel with decisions, so all ranks obey at the
// same place in their stream of batches. Events go into a bounded ring, from which a thread of its
// own makes JSON (timeline_event.h, timeline_file.h); nothing on the road waits for a file. Ranks
// that do not share rank 0's clock ask it what it says before anything is written.
//
// Obey, Add, Mark, the clock's part: holder of the baton. recording, Note: any thread. Await,
// Close: user threads.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "runtime/base/clock_offset.h"
#include "runtime/base/counters.h"
#include "runtime/core/timeline_recording.h"

namespace horon {

class Timeline {
 public:
  // `same_clock`: this rank's steady clock is rank 0's.
  Timeline(int rank, bool same_clock, Counters& counters);
  ~Timeline();  // closes
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  // The steady clock while something is recorded, else 0.
  int64_t Stamp() const { return recording() ? SteadyNow() : 0; }

  void Obey(const TimelineOrder& order);
  // Whether this run of the tensor is in the window of steps that is recorded.
  bool Wants(uint64_t step);
  void Add(TimelineEvent&& event);
  void MarkCycle(int64_t now);
  // Any thread. False if nothing is recorded, or too much.
  bool Note(TimelineNote&& note);

  // Whether rank 0 is to be asked what its clock says, and that it was, with the time of asking.
  bool wants_clock() const { return questions_left_ > 0 && !asked_; }
  int64_t AskClock();
  void HearClock(const ClockAnswer& answer, int64_t told);

  // Whether the order of this number was obeyed, and if it was an end, all is in the file, within
  // `limit`.
  bool Await(uint64_t number, std::chrono::milliseconds limit);
  // Ends a recording, and waits until all is in the file. Nobody holds the baton any more.
  void Close();

 private:
  static constexpr int kQuestions = 8;
  void End(uint64_t number);
  void TakeNotes(std::shared_ptr<TimelineNotes> notes);

  int rank_;
  bool same_clock_;
  const Counters& counters_;
  Counter &events_, &dropped_;
  std::shared_ptr<TimelineProgress> progress_;
  std::atomic<bool> recording_{false};
  Mutex notes_mutex_;
  std::shared_ptr<TimelineNotes> notes_ HORON_GUARDED_BY(notes_mutex_);  // null: not recording
  // Holder of the baton, and Close.
  std::unique_ptr<TimelineRecording> now_;
  std::vector<std::unique_ptr<TimelineRecording>> ended_;  // whose threads may still write
  TimelineOrder order_;
  bool in_window_ = true;  // of steps
  ClockOffset clock_;
  int questions_left_ = 0;
  bool asked_ = false;
};

}  // namespace horon
