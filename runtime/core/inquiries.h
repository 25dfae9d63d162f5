// Inquiries: asks the program of this rank where it is, because others wait for it.
//
// The runtime asks and never waits for an answer. A thread of the program's own language, which can
// look at its stack, awaits the question and answers in its own time; what it said goes into the
// next answer to rank 0 (activity.h). Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

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
  mutable std::mutex mutex_;
  std::condition_variable asked_;
  bool listens_ = false, open_ = false, closed_ = false;
  Clock::time_point open_since_;
  std::string doing_;
};

}  // namespace horon
