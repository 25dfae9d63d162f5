// Inquiries: asks the program of this rank where it is, because others wait for it.
//
// The runtime asks and never waits for an answer. A thread of the program's own language, which can
// look at its stack, awaits the question and answers in its own time; what it said goes into the
// next answer to rank 0 (activity.h). Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <string>

#include "runtime/base/mutex.h"

namespace horon {

class Inquiries {
 public:
  // So long a question may go unanswered before that says something, too.
  static constexpr std::chrono::milliseconds kPatience{1500};

  void Ask();
  // Blocks until there is a question; false: there will be none any more.
  bool Await();
  // "at train.py:57 in load": a line without an end.
  void Tell(std::string doing);
  void Close();
  // What it said last; or that it cannot say anything; or empty: nobody there who could.
  std::string Answer() const;

 private:
  using Clock = std::chrono::steady_clock;
  mutable Mutex mutex_;
  std::condition_variable_any asked_;
  bool listens_ HORON_GUARDED_BY(mutex_) = false;
  bool open_ HORON_GUARDED_BY(mutex_) = false;
  bool closed_ HORON_GUARDED_BY(mutex_) = false;
  Clock::time_point open_since_ HORON_GUARDED_BY(mutex_);
  std::string doing_ HORON_GUARDED_BY(mutex_);
};

}  // namespace horon
