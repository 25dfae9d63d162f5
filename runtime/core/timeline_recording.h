// TimelineRecording: one recording of a timeline, from its beginning to its end: the ring of events
// and the thread that writes them down.
//
// Put: holder of the baton, never blocks. SetClock, End: holder of the baton, take a lock that is
// held for moments only. The thread is the only one that sees the file.
#pragma once

#include <condition_variable>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/bounded_ring.h"
#include "runtime/base/mutex.h"
#include "runtime/base/timeline_file.h"
#include "runtime/core/timeline_counters.h"
#include "runtime/core/timeline_event.h"
#include "runtime/core/timeline_order.h"

namespace horon {

// How far the orders to a timeline are carried out, for those who wait for that. Any thread.
class TimelineProgress {
 public:
  void Reached(uint64_t number);
  bool Await(uint64_t number, std::chrono::milliseconds limit);

 private:
  Mutex mutex_;
  std::condition_variable_any changed_;
  uint64_t reached_ HORON_GUARDED_BY(mutex_) = 0;
};

// What programs note in one recording, for the thread that writes it. Any thread.
class TimelineNotes {
 public:
  // False if there are too many that are not written yet.
  bool Put(TimelineNote&& note);
  std::vector<TimelineNote> Take();

 private:
  static constexpr size_t kMost = 1 << 14;
  Mutex mutex_;
  std::vector<TimelineNote> notes_ HORON_GUARDED_BY(mutex_);
};

class TimelineRecording {
 public:
  static constexpr size_t kPlaces = 1 << 14;
  // `counters` live as long as the recording.
  TimelineRecording(int rank, const TimelineOrder& order,
                    std::shared_ptr<TimelineProgress> progress, const Counters& counters,
                    size_t places = kPlaces);
  ~TimelineRecording();  // ends and waits

  // False if the ring was full.
  bool Put(TimelineEvent&& event);
  // Nothing is written before it is known how times of this clock become rank 0's.
  void SetClock(int64_t offset, int64_t bound);
  // The thread writes what there is, says that it has reached this order, and ends.
  void End(uint64_t number);
  const std::shared_ptr<TimelineNotes>& notes() const { return notes_; }
  bool written() const { return written_.load(std::memory_order_acquire); }
  uint64_t dropped() const { return ring_.dropped(); }

 private:
  void Write();
  TimelineText::Clock AwaitClock();
  bool AwaitMore();
  uint64_t ended_by();
  void Drain(TimelineFile& file, TimelineText& text);
  bool Append(TimelineFile& file, std::string& out);

  int rank_;
  TimelineOrder order_;
  std::shared_ptr<TimelineProgress> progress_;
  std::shared_ptr<TimelineNotes> notes_ = std::make_shared<TimelineNotes>();
  BoundedRing<TimelineEvent> ring_;
  TimelineCounters tracks_;
  uint64_t dropped_told_ = 0;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<TimelineText::Clock> clock_ HORON_GUARDED_BY(mutex_);
  uint64_t ended_by_ HORON_GUARDED_BY(mutex_) = 0;
  bool ended_ HORON_GUARDED_BY(mutex_) = false;
  std::atomic<bool> written_{false};
  std::thread thread_;
};

}  // namespace horon
