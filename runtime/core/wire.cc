#include "runtime/core/wire.h"

#include <algorithm>

#include "runtime/core/wire_parts.h"
#include "runtime/core/wire_timeline.h"

namespace horon {
namespace {

// Flags of a message that usually has none of what they announce.
constexpr uint8_t kLeaving = 1, kAsks = 2, kAnswers = 4, kCurious = 8, kGivesUp = 16, kUnlocks = 32,
                  kStarted = 64, kAsksClock = 128;
constexpr uint8_t kInquires = 1, kLoses = 2, kDescribes = 4, kMayLock = 8, kStops = 16,
                  kResumes = 32, kOrdersTimeline = 64, kTellsClock = 128;

uint8_t FlagsOf(const Report& report) {
  return static_cast<uint8_t>((report.leaving ? kLeaving : 0) | (report.ask ? kAsks : 0) |
                              (report.activity ? kAnswers : 0) | (report.describe ? kCurious : 0) |
                              (report.given_up.empty() ? 0 : kGivesUp) |
                              (report.unlock ? kUnlocks : 0) | (report.started ? kStarted : 0) |
                              (report.clock ? kAsksClock : 0));
}

uint8_t FlagsOf(const Decision& decision) {
  return static_cast<uint8_t>(
      (decision.inquire ? kInquires : 0) | (decision.lost >= 0 ? kLoses : 0) |
      (decision.description.empty() ? 0 : kDescribes) | (decision.may_lock ? kMayLock : 0) |
      (decision.stop ? kStops : 0) | (decision.resume ? kResumes : 0) |
      (decision.timeline ? kOrdersTimeline : 0) | (decision.clocks.empty() ? 0 : kTellsClock));
}

constexpr size_t kLeastVerdict = 33;  // bytes

// The size of a bucket, then what of the rest is not as it is by itself.
constexpr uint8_t kHasChunk = 1, kHasSlice = 2, kHasFlat = 4;

void Write(WireWriter& out, const Tuning& tuning) {
  out.Number(tuning.fusion_bytes);
  out.Number(static_cast<uint8_t>((tuning.chunk_bytes != 0 ? kHasChunk : 0) |
                                  (tuning.slice_bytes != 0 ? kHasSlice : 0) |
                                  (tuning.hierarchical ? 0 : kHasFlat)));
  if (tuning.chunk_bytes != 0) out.Number(tuning.chunk_bytes);
  if (tuning.slice_bytes != 0) out.Number(tuning.slice_bytes);
}

Tuning ReadTuning(WireReader& in) {
  Tuning tuning;
  tuning.fusion_bytes = in.Number<int64_t>();
  const auto more = in.Number<uint8_t>();
  tuning.hierarchical = (more & kHasFlat) == 0;
  if ((more & kHasChunk) != 0) tuning.chunk_bytes = in.Number<int64_t>();
  if ((more & kHasSlice) != 0) tuning.slice_bytes = in.Number<int64_t>();
  if (tuning.fusion_bytes < 0 || tuning.chunk_bytes < 0 || tuning.slice_bytes < 0)
    in.Fail("a size is negative");
  return tuning;
}

constexpr uint8_t kKept = 0x80;  // beside a status code

void Write(WireWriter& out, const Verdict& v) {
  out.Number(v.cache_id);
  out.Number(v.process_set);
  out.Number(v.only_rank);
  out.Number(static_cast<uint8_t>(static_cast<int>(v.status.code()) | (v.kept ? kKept : 0)));
  out.Text(v.name);
  out.Text(v.status.message());
  out.Numbers(v.agreed.sizes);
  out.Numbers(v.joined);
  if (!v.joined.empty()) Write(out, v.stand_in);
}

Verdict ReadVerdict(WireReader& in, int ranks) {
  Verdict v;
  v.cache_id = in.Number<uint64_t>();
  v.process_set = in.Number<int32_t>();
  v.only_rank = in.Number<int32_t>();
  auto code = in.Number<uint8_t>();
  v.kept = (code & kKept) != 0;
  code = code & (kKept - 1);
  if (code > static_cast<uint8_t>(Code::kLate)) in.Fail("a status code is unknown");
  v.name = in.Text();
  std::string message = in.Text();
  if (code != 0) v.status = Status(static_cast<Code>(code), std::move(message));
  v.agreed.sizes = in.Numbers<int64_t>();
  v.joined = in.Numbers<int32_t>();
  for (int32_t rank : v.joined) {
    if (rank < 0 || rank >= ranks) in.Fail("a rank is out of range");
  }
  if (!v.joined.empty()) v.stand_in = ReadRequest(in);
  return v;
}

}  // namespace

WireBytes Encode(const Report& report) {
  WireWriter out;
  out.Number(report.number);
  out.Number(report.heard);
  out.Number(FlagsOf(report));
  WriteIds(out, report.bits);
  out.Number(static_cast<uint32_t>(report.requests.size()));
  for (const Request& request : report.requests) Write(out, request);
  if (report.activity) Write(out, *report.activity);
  if (!report.given_up.empty()) out.Text(report.given_up);
  if (report.unlock) out.Number(report.uneven);
  if (report.started) out.Number(*report.started);
  if (report.clock) out.Number(*report.clock);
  return out.Take();
}

Result<Report> DecodeReport(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Report report;
  report.number = in.Number<uint64_t>();
  report.heard = in.Number<uint64_t>();
  const auto flags = in.Number<uint8_t>();
  report.leaving = (flags & kLeaving) != 0;
  report.ask = (flags & kAsks) != 0;
  report.describe = (flags & kCurious) != 0;
  report.unlock = (flags & kUnlocks) != 0;
  report.bits = ReadIds(in);
  const uint32_t count = in.Count(kLeastRequest);
  for (uint32_t i = 0; i < count; ++i) report.requests.push_back(ReadRequest(in));
  if ((flags & kAnswers) != 0) report.activity = ReadActivity(in);
  if ((flags & kGivesUp) != 0) report.given_up = in.Text();
  if (report.unlock) report.uneven = in.Number<uint64_t>();
  if ((flags & kStarted) != 0) report.started = in.Number<uint64_t>();
  if ((flags & kAsksClock) != 0) report.clock = in.Number<int64_t>();
  HORON_TRY(in.Finish());
  return report;
}

namespace {

// Of ranks that follow each other, as a node's do. One at least, and no more than there are.
RecycledVector<int32_t> ReadRanks(WireReader& in, int ranks) {
  const auto runs = in.Numbers<int32_t, RecycledVector<int32_t>>();
  RecycledVector<int32_t> found;
  const auto most = static_cast<size_t>(ranks);
  for (size_t i = 0; i + 1 < runs.size() && found.size() <= most; i += 2) {
    const int32_t first = runs[i], length = runs[i + 1];
    if (first < 0 || first >= ranks || length < 1 || length > ranks - first) {
      in.Fail("a rank is out of range");
      return {};
    }
    for (int32_t r = first; r < first + length; ++r) found.push_back(r);
  }
  if (runs.size() % 2 != 0 || found.empty() || found.size() > most) {
    in.Fail("a report is of no rank, or of more than there are");
    return {};
  }
  return found;
}

}  // namespace

void Bundle::Add(int32_t rank, std::span<const std::byte> report) {
  const auto said_by_others = [&](const Said& last) {
    return std::ranges::equal(report, last.report) &&
           std::ranges::find(last.ranks, rank) == last.ranks.end();
  };
  if (said_.empty() || !said_by_others(said_.back()))
    said_.push_back({{}, {report.begin(), report.end()}});
  said_.back().ranks.push_back(rank);
}

WireBytes Bundle::Take() {
  WireWriter out;
  for (const Said& said : std::exchange(said_, {})) {
    out.Numbers(RunsOf(said.ranks, [](int32_t) { return false; }));
    out.Bytes(said.report);
  }
  return out.Take();
}

Result<RecycledVector<RankReport>> DecodeBundle(std::span<const std::byte> bytes, int ranks) {
  WireReader in(bytes);
  RecycledVector<RankReport> reports;
  while (!in.AtEnd()) {
    const RecycledVector<int32_t> from = ReadRanks(in, ranks);
    const WireBytes report = in.Bytes();
    for (int32_t rank : from) reports.emplace_back(rank, report);
  }
  HORON_TRY(in.Finish());
  return reports;
}

WireBytes Encode(const Decision& decision) {
  WireWriter out;
  out.Number(decision.sequence);
  Write(out, decision.tuning);
  WriteIds(out, decision.evicted);
  WriteOrder(out, decision.order);
  out.Number(static_cast<uint32_t>(decision.verdicts.size()));
  for (const Verdict& v : decision.verdicts) Write(out, v);
  out.Numbers(decision.left);
  out.Number(FlagsOf(decision));
  if (decision.lost >= 0) {
    out.Number(decision.lost);
    out.Text(decision.lost_because);
  }
  if (!decision.description.empty()) Write(out, decision.description);
  if (decision.resume) {
    out.Number(*decision.resume);
    out.Number(decision.uneven);
  }
  if (decision.timeline) Write(out, *decision.timeline);
  if (!decision.clocks.empty()) Write(out, decision.clocks, decision.clock_told);
  return out.Take();
}

Result<Decision> DecodeDecision(std::span<const std::byte> bytes, int ranks) {
  WireReader in(bytes);
  Decision decision;
  decision.sequence = in.Number<uint64_t>();
  decision.tuning = ReadTuning(in);
  decision.evicted = ReadIds(in);
  decision.order = ReadOrder(in);
  const uint32_t count = in.Count(kLeastVerdict);
  for (uint32_t i = 0; i < count; ++i) decision.verdicts.push_back(ReadVerdict(in, ranks));
  decision.left = in.Numbers<int32_t>();
  for (int32_t rank : decision.left) {
    if (rank < 0 || rank >= ranks) in.Fail("a rank is out of range");
  }
  const auto flags = in.Number<uint8_t>();
  decision.inquire = (flags & kInquires) != 0;
  decision.may_lock = (flags & kMayLock) != 0;
  decision.stop = (flags & kStops) != 0;
  if ((flags & kLoses) != 0) {
    decision.lost = in.Number<int32_t>();
    if (decision.lost < 0 || decision.lost >= ranks) in.Fail("a rank is out of range");
    decision.lost_because = in.Text();
  }
  if ((flags & kDescribes) != 0) decision.description = ReadTexts(in);
  if ((flags & kResumes) != 0) {
    decision.resume = in.Number<uint64_t>();
    decision.uneven = in.Number<uint64_t>();
  }
  if ((flags & kOrdersTimeline) != 0) decision.timeline = ReadTimelineOrder(in);
  if ((flags & kTellsClock) != 0) ReadClocks(in, ranks, decision);
  HORON_TRY(in.Finish());
  return decision;
}

}  // namespace horon
