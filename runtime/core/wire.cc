#include "runtime/core/wire.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/core/wire_timeline.h"

namespace horon {
namespace {

// Ids of one step lie close together: a base and a bitmap, or the plain list when that is shorter.
void WriteIds(WireWriter& out, std::vector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end());
  const uint64_t base = ids.empty() ? 0 : ids.front();
  const uint64_t words = ids.empty() ? 0 : (ids.back() - base) / 64 + 1;
  const bool bitmap = words <= ids.size();
  out.Number(static_cast<uint8_t>(bitmap));
  if (!bitmap) {
    out.Numbers(ids);
    return;
  }
  std::vector<uint64_t> map(words);
  for (uint64_t id : ids) map[(id - base) / 64] |= uint64_t{1} << ((id - base) % 64);
  out.Number(base);
  out.Numbers(map);
}

std::vector<uint64_t> ReadIds(WireReader& in) {
  if (in.Number<uint8_t>() == 0) return in.Numbers<uint64_t>();
  const auto base = in.Number<uint64_t>();
  const std::vector<uint64_t> map = in.Numbers<uint64_t>();
  std::vector<uint64_t> ids;
  if (base > std::numeric_limits<uint64_t>::max() - map.size() * 64)
    in.Fail("a cache id is too large");
  for (size_t w = 0; w < map.size(); ++w) {
    for (uint64_t bits = map[w]; bits != 0; bits &= bits - 1) {
      ids.push_back(base + w * 64 + static_cast<uint64_t>(std::countr_zero(bits)));
    }
  }
  return ids;
}

// A list in which neighbours often differ by one, as runs.
void WriteOrder(WireWriter& out, const std::vector<uint64_t>& order) {
  std::vector<uint64_t> runs;  // first number, length, ...
  for (uint64_t id : order) {
    const bool next = !runs.empty() && id != 0 && id == runs[runs.size() - 2] + runs.back();
    if (next && runs[runs.size() - 2] != 0) {
      ++runs.back();
    } else {
      runs.insert(runs.end(), {id, 1});
    }
  }
  out.Numbers(runs);
}

constexpr uint64_t kLongestOrder = 1 << 22;

std::vector<uint64_t> ReadOrder(WireReader& in) {
  const std::vector<uint64_t> runs = in.Numbers<uint64_t>();
  if (runs.size() % 2 != 0) in.Fail("a run has no length");
  std::vector<uint64_t> order;
  for (size_t i = 0; i + 1 < runs.size(); i += 2) {
    if (runs[i + 1] > kLongestOrder - order.size()) {
      in.Fail("an order is too long");
      return {};
    }
    for (uint64_t n = 0; n < runs[i + 1]; ++n) order.push_back(runs[i] + n);
  }
  return order;
}

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

constexpr size_t kLeastText = 4;

void Write(WireWriter& out, const std::vector<std::string>& texts) {
  out.Number(static_cast<uint32_t>(texts.size()));
  for (const std::string& text : texts) out.Text(text);
}

std::vector<std::string> ReadTexts(WireReader& in) {
  std::vector<std::string> texts(in.Count(kLeastText));
  for (std::string& text : texts) text = in.Text();
  return texts;
}

void Write(WireWriter& out, const Activity& a) {
  out.Number(a.callers);
  out.Number(a.blocked);
  out.Number(a.submits);
  Write(out, a.waits);
  out.Text(a.last);
  out.Number(a.last_ms);
  out.Text(a.doing);
}

Activity ReadActivity(WireReader& in) {
  Activity a;
  a.callers = in.Number<int32_t>();
  a.blocked = in.Number<int32_t>();
  a.submits = in.Number<uint64_t>();
  a.waits = ReadTexts(in);
  a.last = in.Text();
  a.last_ms = in.Number<int64_t>();
  a.doing = in.Text();
  return a;
}

constexpr size_t kLeastRequest = 60, kLeastVerdict = 33;

void Write(WireWriter& out, const Request& r) {
  out.Text(r.name);
  out.Text(r.op);
  out.Number(static_cast<uint8_t>(r.dtype));
  out.Number(static_cast<uint8_t>(r.device.kind));
  out.Number(r.device.index);
  out.Numbers(r.shape);
  out.Number(r.prescale);
  out.Number(r.postscale);
  out.Number(r.process_set);
  out.Text(r.group);
  out.Number(r.group_size);
  out.Number(r.group_hash);
  out.Number(r.round);
  out.Numbers(r.splits);
  out.Numbers(r.weights);
}

Request ReadRequest(WireReader& in) {
  Request r;
  r.name = in.Text();
  r.op = in.Text();
  const auto dtype = in.Number<uint8_t>();
  if (dtype >= kDataTypes) in.Fail("a dtype is unknown");
  r.dtype = static_cast<DataType>(dtype < kDataTypes ? dtype : 0);
  const auto device = in.Number<uint8_t>();
  if (device > static_cast<uint8_t>(DeviceKind::kCuda)) in.Fail("a device is unknown");
  r.device.kind = static_cast<DeviceKind>(device & 1);
  r.device.index = in.Number<int32_t>();
  r.shape = in.Numbers<int64_t>();
  for (int64_t extent : r.shape) {
    if (extent < 0) in.Fail("a dimension is negative");
  }
  r.prescale = in.Number<double>();
  r.postscale = in.Number<double>();
  r.process_set = in.Number<int32_t>();
  r.group = in.Text();
  r.group_size = in.Number<int32_t>();
  r.group_hash = in.Number<uint64_t>();
  r.round = in.Number<int64_t>();
  r.splits = in.Numbers<int64_t>();
  r.weights = in.Numbers<double>();
  return r;
}

}  // namespace

std::vector<std::byte> Encode(const Report& report) {
  WireWriter out;
  out.Number(report.number);
  out.Number(report.heard);
  out.Number(FlagsOf(report));
  WriteIds(out, report.bits);
  out.Number(static_cast<uint32_t>(report.requests.size()));
  for (const Request& request : report.requests) Write(out, request);
  if (report.activity) Write(out, *report.activity);
  if (!report.given_up.empty()) out.Text(report.given_up);
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
  if ((flags & kStarted) != 0) report.started = in.Number<uint64_t>();
  if ((flags & kAsksClock) != 0) report.clock = in.Number<int64_t>();
  HORON_TRY(in.Finish());
  return report;
}

void Bundle::Add(int32_t rank, std::span<const std::byte> report) {
  if (said_.empty() || !std::equal(report.begin(), report.end(), said_.back().report.begin(),
                                   said_.back().report.end())) {
    said_.push_back({{}, {report.begin(), report.end()}});
  }
  said_.back().ranks.push_back(rank);
}

std::vector<std::byte> Bundle::Take() {
  WireWriter out;
  for (const Said& said : std::exchange(said_, {})) {
    out.Numbers(said.ranks);
    out.Bytes(said.report);
  }
  return out.Take();
}

Result<std::vector<RankReport>> DecodeBundle(std::span<const std::byte> bytes, int ranks) {
  WireReader in(bytes);
  std::vector<RankReport> reports;
  while (!in.AtEnd()) {
    const std::vector<int32_t> from = in.Numbers<int32_t>();
    if (from.empty() || from.size() > static_cast<size_t>(ranks))
      in.Fail("a report is of no rank, or of more than there are");
    const std::vector<std::byte> report = in.Bytes();
    for (int32_t rank : from) {
      if (rank < 0 || rank >= ranks) in.Fail("a rank is out of range");
      reports.emplace_back(rank, report);
    }
  }
  HORON_TRY(in.Finish());
  return reports;
}

std::vector<std::byte> Encode(const Decision& decision) {
  WireWriter out;
  out.Number(decision.sequence);
  out.Number(decision.fusion_bytes);
  WriteIds(out, decision.evicted);
  WriteOrder(out, decision.order);
  out.Number(static_cast<uint32_t>(decision.verdicts.size()));
  for (const Verdict& v : decision.verdicts) {
    out.Number(v.cache_id);
    out.Number(v.process_set);
    out.Number(v.only_rank);
    out.Number(static_cast<uint8_t>(v.status.code()));
    out.Text(v.name);
    out.Text(v.status.message());
    out.Numbers(v.agreed.sizes);
    out.Numbers(v.joined);
    if (!v.joined.empty()) Write(out, v.stand_in);
  }
  out.Numbers(decision.left);
  out.Number(FlagsOf(decision));
  if (decision.lost >= 0) {
    out.Number(decision.lost);
    out.Text(decision.lost_because);
  }
  if (!decision.description.empty()) Write(out, decision.description);
  if (decision.resume) out.Number(*decision.resume);
  if (decision.timeline) Write(out, *decision.timeline);
  if (!decision.clocks.empty()) Write(out, decision.clocks, decision.clock_told);
  return out.Take();
}

Result<Decision> DecodeDecision(std::span<const std::byte> bytes, int ranks) {
  WireReader in(bytes);
  Decision decision;
  decision.sequence = in.Number<uint64_t>();
  decision.fusion_bytes = in.Number<int64_t>();
  decision.evicted = ReadIds(in);
  decision.order = ReadOrder(in);
  const uint32_t count = in.Count(kLeastVerdict);
  for (uint32_t i = 0; i < count; ++i) {
    Verdict v;
    v.cache_id = in.Number<uint64_t>();
    v.process_set = in.Number<int32_t>();
    v.only_rank = in.Number<int32_t>();
    const auto code = in.Number<uint8_t>();
    if (code > static_cast<uint8_t>(Code::kInternal)) in.Fail("a status code is unknown");
    v.name = in.Text();
    std::string message = in.Text();
    if (code != 0) v.status = Status(static_cast<Code>(code), std::move(message));
    v.agreed.sizes = in.Numbers<int64_t>();
    v.joined = in.Numbers<int32_t>();
    for (int32_t rank : v.joined) {
      if (rank < 0 || rank >= ranks) in.Fail("a rank is out of range");
    }
    if (!v.joined.empty()) v.stand_in = ReadRequest(in);
    decision.verdicts.push_back(std::move(v));
  }
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
  if ((flags & kResumes) != 0) decision.resume = in.Number<uint64_t>();
  if ((flags & kOrdersTimeline) != 0) decision.timeline = ReadTimelineOrder(in);
  if ((flags & kTellsClock) != 0) ReadClocks(in, ranks, decision);
  HORON_TRY(in.Finish());
  return decision;
}

}  // namespace horon
