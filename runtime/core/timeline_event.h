// TimelineEvent: what a timeline keeps of a tensor that has been through the runtime; and
// TimelineText, which makes Chrome's JSON of it: a process a rank, a row a tensor.
//
// Events are made by the executor (holder of the baton) and written by the timeline's own thread.
// Times are of this process's steady clock, in ns; 0: before the recording began.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runtime/base/phases.h"
#include "runtime/core/entry.h"

namespace horon {

struct TimelineEvent {
  SharedRegistration what;  // null: a cycle of the runtime began, at `started`
  Stamps stamps;
  int64_t started = 0, finished = 0;  // of its bucket
  Phases phases;                      // of its bucket
  uint64_t bucket = 0, step = 0;
  uint64_t in_bucket = 0;  // tensors
  Locked locked;
  const char* algorithm = "";  // a literal
  bool ok = true;
};

// What a program says that it did, from `begun` to `ended`, in a row of its own.
struct TimelineNote {
  std::string row, activity;
  int64_t begun = 0, ended = 0;
};

class TimelineText {
 public:
  struct Clock {
    int64_t offset = 0;  // rank 0's clock - mine, ns
    int64_t bound = 0;   // of the error; < 0: not known
    int64_t epoch = 0;   // of rank 0's clock: time 0 of the timeline
  };
  TimelineText(int rank, Clock clock) : rank_(rank), clock_(clock) {}

  // The events that say who this rank is, and how its clock was put right.
  std::string Opening(const std::string& host, int64_t epoch_us) const;
  // Appends the JSON of an event to `out`, ",\n" between objects.
  void Write(const TimelineEvent& event, std::string& out);
  void Write(const TimelineNote& note, std::string& out);
  // What some counters say at a time: a track of the rank's, drawn over time.
  void WriteTrack(const std::string& name, int64_t now,
                  const std::map<std::string, int64_t>& values, std::string& out) const;
  // An event that says how many were lost because the ring was full.
  void WriteDropped(uint64_t dropped, int64_t now, std::string& out) const;

 private:
  struct Row {              // what is the same in all events of a tensor
    SharedRegistration of;  // another one of the same name has another shape
    int number = 0;
    std::string collective, place, about;
  };
  void WriteTensor(const TimelineEvent& event, std::string& out);
  Row& RowOf(const SharedRegistration& what, std::string& out);
  void Begin(Row& row, const std::string& name, std::string& out);
  void WritePhases(const Row& row, const TimelineEvent& event, std::string& out) const;
  void Span(const Row& row, std::string_view name, int64_t begin, int64_t end,
            std::string& out) const;
  std::string Place(int row) const;
  void Time(int64_t ns, std::string& out) const;

  int rank_;
  Clock clock_;
  // By key, programs' own by "\n" and their name; number 0 is the cycles'.
  std::unordered_map<std::string, Row> rows_;
};

// `text` as a JSON string, quotes included.
std::string JsonText(const std::string& text);

}  // namespace horon
