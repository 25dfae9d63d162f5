#include "runtime/core/wire_parts.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace horon {

namespace {

enum class IdsAs : uint8_t { kRuns = 0, kBitmap = 1 };

// Ids count up from 1. Those at the very end have no bitmap.
constexpr uint64_t kLargestId = std::numeric_limits<uint64_t>::max() - 64;
constexpr uint64_t kMostInRuns = 1 << 22;  // of a message that may be anybody's: 32 MiB
constexpr size_t kBytesOfRun = 2;          // where runs are short and lie close together

// A difference of either sign, small ones in few bytes.
uint64_t Folded(uint64_t difference) {
  return (difference << 1) ^ (difference >> 63 != 0 ? ~uint64_t{0} : 0);
}
uint64_t Unfolded(uint64_t folded) {
  return (folded >> 1) ^ ((folded & 1) != 0 ? ~uint64_t{0} : 0);
}

// Each by how far it begins behind the end of the one before, and its length.
void WriteRuns(WireWriter& out, const RecycledVector<uint64_t>& runs) {
  out.Varint(runs.size() / 2);
  uint64_t end = 0;
  for (size_t i = 0; i + 1 < runs.size(); i += 2) {
    out.Varint(Folded(runs[i] - end));
    out.Varint(runs[i + 1]);
    end = runs[i] + runs[i + 1];
  }
}

RecycledVector<uint64_t> ReadRuns(WireReader& in) {
  RecycledVector<uint64_t> numbers;
  uint64_t end = 0;
  const uint64_t runs = in.Varint();
  for (uint64_t i = 0; i < runs; ++i) {
    const uint64_t first = end + Unfolded(in.Varint());
    const uint64_t length = in.Varint();
    if (length == 0 || length > kMostInRuns - numbers.size()) {  // 0 also where nothing is left
      in.Fail("a run is of no number, or of too many");
      return {};
    }
    end = first + length;
    for (uint64_t n = first; n != end; ++n) numbers.push_back(n);
  }
  return numbers;
}

RecycledVector<uint64_t> ReadBitmap(WireReader& in) {
  RecycledVector<uint64_t> ids;
  const uint64_t base = in.Varint();
  const RecycledVector<uint64_t> map = in.Numbers<uint64_t, RecycledVector<uint64_t>>();
  if (base > std::numeric_limits<uint64_t>::max() - map.size() * 64)
    in.Fail("a cache id is too large");
  for (size_t w = 0; w < map.size(); ++w) {
    for (uint64_t bits = map[w]; bits != 0; bits &= bits - 1) {
      ids.push_back(base + w * 64 + static_cast<uint64_t>(std::countr_zero(bits)));
    }
  }
  return ids;
}

}  // namespace

// Ids of one step lie close together, in a steady one with few gaps: runs of them, or a bitmap
// where that is shorter.
void WriteIds(WireWriter& out, RecycledVector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const RecycledVector<uint64_t> runs = RunsOf(ids, [](uint64_t) { return false; });
  const uint64_t base = ids.empty() ? 0 : ids.front();
  const uint64_t words = ids.empty() ? 0 : (ids.back() - base) / 64 + 1;
  const bool as_runs = ids.size() <= kMostInRuns && runs.size() / 2 * kBytesOfRun <= words * 8;
  out.Number(static_cast<uint8_t>(as_runs ? IdsAs::kRuns : IdsAs::kBitmap));
  if (as_runs) {
    WriteRuns(out, runs);
    return;
  }
  RecycledVector<uint64_t> map(words);
  for (uint64_t id : ids) map[(id - base) / 64] |= uint64_t{1} << ((id - base) % 64);
  out.Varint(base);
  out.Numbers(map);
}

RecycledVector<uint64_t> ReadIds(WireReader& in) {
  RecycledVector<uint64_t> ids;
  switch (static_cast<IdsAs>(in.Number<uint8_t>())) {
    case IdsAs::kRuns:
      ids = ReadRuns(in);
      break;
    case IdsAs::kBitmap:
      ids = ReadBitmap(in);
      break;
    default:
      in.Fail("cache ids are written in no known way");
  }
  if (std::ranges::any_of(ids, [](uint64_t id) { return id > kLargestId; }))
    in.Fail("a cache id is too large");
  return ids;
}

void WriteOrder(WireWriter& out, const RecycledVector<uint64_t>& order) {
  WriteRuns(out, RunsOf(order, [](uint64_t id) { return id == 0; }));
}

RecycledVector<uint64_t> ReadOrder(WireReader& in) { return ReadRuns(in); }

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

}  // namespace horon
