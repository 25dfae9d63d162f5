// ClockOffset: how far another process's steady clock is ahead of mine, from questions and answers.
//
// I ask at `asked`; the other hears it at `heard` and answers at `told`, both by its clock; I hear
// the answer at `answered`. If both ways took equally long its clock is ahead by the mean of
// (heard - asked) and (told - answered). However they differ, the error is at most half of what the
// two ways took together. Of several exchanges the one with the least such bound counts. Pure.
#pragma once

#include <cstdint>
#include <limits>

namespace horon {

struct ClockExchange {
  int64_t asked = 0, heard = 0, told = 0, answered = 0;  // ns
};

class ClockOffset {
 public:
  void Add(const ClockExchange& e) {
    const int64_t both_ways = (e.answered - e.asked) - (e.told - e.heard);
    if (both_ways < 0) return;  // no such clocks: an answer to another question
    const int64_t bound = both_ways / 2 + both_ways % 2;
    if (bound >= bound_) return;
    bound_ = bound;
    offset_ = ((e.heard - e.asked) + (e.told - e.answered)) / 2;
  }
  bool known() const { return bound_ != kUnknown; }
  int64_t offset() const { return offset_; }  // its clock - mine, ns
  int64_t bound() const { return bound_; }    // ns

 private:
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  int64_t offset_ = 0, bound_ = kUnknown;
};

}  // namespace horon
