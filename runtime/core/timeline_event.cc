#include "runtime/core/timeline_event.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "runtime/op/op.h"

namespace horon {
namespace {

// Thousands of times a second: snprintf would take most of the writer's time.
void Microseconds(int64_t ns, std::string& out) {
  if (ns < 0) out += '-';
  const int64_t size = std::abs(ns);
  char text[24];
  char* const end = std::to_chars(text, text + sizeof(text), size / 1000).ptr;
  out.append(text, end);
  const auto digit = [&](int64_t unit) { return static_cast<char>('0' + size / unit % 10); };
  const char fraction[] = {'.', digit(100), digit(10), digit(1)};
  out.append(fraction, sizeof(fraction));
}

std::string Microseconds(int64_t ns) {
  std::string text;
  Microseconds(ns, text);
  return text;
}

void Number(std::string_view name, uint64_t value, std::string& out) {
  char text[24];
  char* const end = std::to_chars(text, text + sizeof(text), value).ptr;
  out.append(name).append(text, end);
}

// As Horovod names its collectives.
std::string CollectiveOf(const Registration& what) {
  if (what.op != nullptr && what.op->elementwise()) return "ALLREDUCE";
  std::string name = what.request.op.substr(0, what.request.op.find(':'));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

// What does not change from run to run.
std::string About(const Registration& what) {
  const Request& r = what.request;
  return "\"op\":" + JsonText(r.op) + ",\"dtype\":\"" + std::string(NameOf(r.dtype)) +
         "\",\"shape\":" + ShapeText(r.shape) + ",\"bytes\":" + std::to_string(what.bytes);
}

void RunArgs(const TimelineEvent& e, std::string& out) {
  ((out += ",\"algorithm\":\"") += e.algorithm) += '"';
  Number(",\"step\":", e.step, out);
  Number(",\"bucket\":", e.bucket, out);
  Number(",\"in_bucket\":", e.in_bucket, out);
  if (!e.ok) out += ",\"failed\":true";
}

}  // namespace

std::string JsonText(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    char code[8];
    if (c == '"' || c == '\\') {
      (json += '\\') += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::snprintf(code, sizeof(code), "\\u%04x", byte);
      json += code;
    } else {
      json += c;
    }
  }
  return json + "\"";
}

void TimelineText::Time(int64_t ns, std::string& out) const {
  Microseconds(ns + clock_.offset - clock_.epoch, out);
}

std::string TimelineText::Opening(const std::string& host, int64_t epoch_us) const {
  const std::string rank = std::to_string(rank_);
  const auto meta = [&](const std::string& name, const std::string& args) {
    return "{\"name\":\"" + name + "\",\"ph\":\"M\",\"pid\":" + rank + ",\"tid\":0,\"args\":{" +
           args + "}}";
  };
  std::string out = meta("process_name", "\"name\":" + JsonText("rank " + rank + " on " + host));
  out += ",\n" + meta("process_sort_index", "\"sort_index\":" + rank);
  out += ",\n" + meta("thread_name", "\"name\":\"cycles\"");
  if (rank_ == 0)
    out += ",\n" +
           meta("start_time", "\"start_time_since_epoch_in_micros\":" + std::to_string(epoch_us));
  const std::string bound = clock_.bound < 0 ? "null" : Microseconds(clock_.bound);
  return out + ",\n" +
         meta("clock_offset", "\"rank\":" + rank + ",\"offset_us\":" + Microseconds(clock_.offset) +
                                  ",\"error_us\":" + bound);
}

std::string TimelineText::Place(int row) const {
  return ",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(row);
}

TimelineText::Row& TimelineText::RowOf(const SharedRegistration& what, std::string& out) {
  const auto [known, added] = rows_.try_emplace(what->key);
  Row& row = known->second;
  if (row.of == what) return row;
  row.of = what;
  row.collective = CollectiveOf(*what);
  row.about = About(*what);
  const Request& r = what->request;
  const std::string set =
      r.process_set == 0 ? "" : " (process set " + std::to_string(r.process_set) + ")";
  if (added) Begin(row, r.name + set, out);
  return row;
}

void TimelineText::Begin(Row& row, const std::string& name, std::string& out) {
  row.number = static_cast<int>(rows_.size());
  row.place = "\",\"ph\":\"X\"" + Place(row.number) + ",\"ts\":";
  out += "{\"name\":\"thread_name\",\"ph\":\"M\"" + Place(row.number) +
         ",\"args\":{\"name\":" + JsonText(name) + "}},\n";
}

// Ends in its arguments, which the caller closes.
void TimelineText::Span(const Row& row, std::string_view name, int64_t begin, int64_t end,
                        std::string& out) const {
  if (!out.empty() && !out.ends_with('\n')) out += ",\n";
  (out += "{\"name\":\"") += name;
  out += row.place;
  Time(begin, out);
  out += ",\"dur\":";
  Microseconds(std::max<int64_t>(0, end - begin), out);
  out += ",\"args\":{";
}

void TimelineText::Write(const TimelineEvent& event, std::string& out) {
  if (!out.empty()) out += ",\n";
  if (event.what) {
    WriteTensor(event, out);
    return;
  }
  out += "{\"name\":\"CYCLE_START\",\"ph\":\"i\",\"s\":\"p\"" + Place(0) + ",\"ts\":";
  Time(event.started, out);
  out += '}';
}

void TimelineText::Write(const TimelineNote& note, std::string& out) {
  if (!out.empty()) out += ",\n";
  const auto [known, added] = rows_.try_emplace("\n" + note.row);
  if (added) Begin(known->second, note.row, out);
  const std::string name = JsonText(note.activity);
  Span(known->second, std::string_view(name).substr(1, name.size() - 2), note.begun, note.ended,
       out);
  out += "}}";
}

void TimelineText::WriteTrack(const std::string& name, int64_t now,
                              const std::map<std::string, int64_t>& values,
                              std::string& out) const {
  if (!out.empty()) out += ",\n";
  out += "{\"name\":" + JsonText(name) + ",\"ph\":\"C\"" + Place(0) + ",\"ts\":";
  Time(now, out);
  const char* between = ",\"args\":{";
  for (const auto& [word, value] : values) {
    out += between + JsonText(word) + ":" + std::to_string(value);
    between = ",";
  }
  out += "}}";
}

// Before it runs: how long the runtime did not know of it, and how long the ranks took to agree, or
// in a locked schedule, where nobody is asked, until its batch was complete. Then the run, and in
// it what of packing and unpacking did not hide behind the wire.
void TimelineText::WriteTensor(const TimelineEvent& e, std::string& out) {
  const Row& row = RowOf(e.what, out);
  const bool locked = e.locked.number > 0;
  if (e.stamps.submitted != 0) {
    Span(row, "QUEUE", e.stamps.submitted, e.stamps.taken, out);
    out += "}}";
  }
  if (e.stamps.taken != 0) {
    Span(row, (locked ? "SCHEDULE_" : "NEGOTIATE_") + row.collective, e.stamps.taken, e.started,
         out);
    out += locked ? "\"negotiated\":false" : "\"negotiated\":true";
    if (locked) Number(",\"schedule\":", e.locked.schedule, out);
    if (locked) Number(",\"batch\":", e.locked.number, out);
    out += "}}";
  }
  Span(row, row.collective, e.started, e.finished, out);
  out += row.about;
  RunArgs(e, out);
  out += "}}";
  WritePhases(row, e, out);
}

void TimelineText::WritePhases(const Row& row, const TimelineEvent& e, std::string& out) const {
  const Phases& p = e.phases;
  if (p.begun == 0 || p.sent == 0) return;
  const bool measured = p.packing + p.reducing + p.unpacking > 0;
  const int64_t arrived = std::clamp(p.arrived, p.sent, std::max(p.sent, e.finished));
  const auto phase = [&](std::string_view name, int64_t begin, int64_t end, std::string_view busy,
                         int64_t time) {
    Span(row, name, begin, end, out);
    if (measured) {
      ((out += '"') += busy) += "\":";
      Microseconds(time, out);
    }
    out += "}}";
  };
  phase("PACK", p.begun, p.sent, "busy_us", p.packing);
  phase("WIRE", p.sent, arrived, "reduce_us", p.reducing);
  phase("UNPACK", arrived, e.finished, "busy_us", p.unpacking);
}

void TimelineText::WriteDropped(uint64_t dropped, int64_t now, std::string& out) const {
  if (!out.empty()) out += ",\n";
  out += "{\"name\":\"DROPPED_EVENTS\",\"ph\":\"i\",\"s\":\"p\"" + Place(0) + ",\"ts\":";
  Time(now, out);
  Number(",\"args\":{\"events\":", dropped, out);
  out += "}}";
}

}  // namespace horon
