// TimelineCounters: the counters that a timeline shows as tracks of their own, a family each: what
// gossip sent along each edge, and how old what it took in was. A counter of a family has one more
// word in its name: "gossip.bytes.to.3". Values count from the beginning of the recording.
//
// Part of one recording; used by its thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/base/counters.h"
#include "runtime/core/timeline_event.h"

namespace horon {

class TimelineCounters {
 public:
  // The recording begins now.
  explicit TimelineCounters(const Counters& counters);
  // Appends the families in which something has changed.
  void Write(int64_t now, TimelineText& text, std::string& out);

 private:
  using Family = std::map<std::string, int64_t>;  // by last word
  std::map<std::string, Family> Read() const;

  const Counters& counters_;
  int64_t begun_;
  std::map<std::string, Family> before_, told_;
};

}  // namespace horon
