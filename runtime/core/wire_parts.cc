#include "runtime/core/wire_parts.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace horon {

namespace {

enum class IdsAs : uint8_t { kList = 0, kBitmap = 1, kRun = 2 };

// Ids count up from 1. Those at the very end have no bitmap.
constexpr uint64_t kLargestId = std::numeric_limits<uint64_t>::max() - 64;
constexpr uint64_t kLongestRun = 1 << 20;  // of a message that may be anybody's

RecycledVector<uint64_t> ReadBitmap(WireReader& in) {
  RecycledVector<uint64_t> ids;
  const auto base = in.Number<uint64_t>();
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

RecycledVector<uint64_t> ReadRun(WireReader& in) {
  const auto first = in.Number<uint64_t>();
  const auto count = in.Number<uint32_t>();
  if (first > kLargestId || count > kLongestRun) {
    in.Fail("a run of cache ids is too large");
    return {};
  }
  RecycledVector<uint64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

}  // namespace

// Ids of one step lie close together, in a steady one without a gap: a base and their number, or a
// bitmap, or the plain list when that is shorter.
void WriteIds(WireWriter& out, RecycledVector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const uint64_t base = ids.empty() ? 0 : ids.front();
  const uint64_t last = ids.empty() ? 0 : ids.back() - base;
  const uint64_t words = ids.empty() ? 0 : last / 64 + 1;
  const bool run = !ids.empty() && last + 1 == ids.size() && ids.size() <= kLongestRun;
  const IdsAs as = run ? IdsAs::kRun : words <= ids.size() ? IdsAs::kBitmap : IdsAs::kList;
  out.Number(static_cast<uint8_t>(as));
  if (as == IdsAs::kList) {
    out.Numbers(ids);
    return;
  }
  out.Number(base);
  if (as == IdsAs::kRun) {
    out.Number(static_cast<uint32_t>(ids.size()));
    return;
  }
  RecycledVector<uint64_t> map(words);
  for (uint64_t id : ids) map[(id - base) / 64] |= uint64_t{1} << ((id - base) % 64);
  out.Numbers(map);
}

RecycledVector<uint64_t> ReadIds(WireReader& in) {
  RecycledVector<uint64_t> ids;
  switch (static_cast<IdsAs>(in.Number<uint8_t>())) {
    case IdsAs::kList:
      ids = in.Numbers<uint64_t, RecycledVector<uint64_t>>();
      break;
    case IdsAs::kBitmap:
      ids = ReadBitmap(in);
      break;
    case IdsAs::kRun:
      ids = ReadRun(in);
      break;
    default:
      in.Fail("cache ids are written in no known way");
  }
  if (std::ranges::any_of(ids, [](uint64_t id) { return id > kLargestId; }))
    in.Fail("a cache id is too large");
  return ids;
}

void WriteOrder(WireWriter& out, const RecycledVector<uint64_t>& order) {
  out.Numbers(RunsOf(order, [](uint64_t id) { return id == 0; }));
}

constexpr uint64_t kLongestOrder = 1 << 22;

RecycledVector<uint64_t> ReadOrder(WireReader& in) {
  const RecycledVector<uint64_t> runs = in.Numbers<uint64_t, RecycledVector<uint64_t>>();
  if (runs.size() % 2 != 0) in.Fail("a run has no length");
  RecycledVector<uint64_t> order;
  for (size_t i = 0; i + 1 < runs.size(); i += 2) {
    if (runs[i + 1] > kLongestOrder - order.size()) {
      in.Fail("an order is too long");
      return {};
    }
    for (uint64_t n = 0; n < runs[i + 1]; ++n) order.push_back(runs[i] + n);
  }
  return order;
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
