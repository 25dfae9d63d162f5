#include "runtime/core/notice.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "runtime/core/wire_parts.h"

namespace horon {
namespace {

constexpr size_t kRoom = NoticeWords::kWords * sizeof(uint64_t);
constexpr size_t kMostWaitsNoted = 4;
constexpr int kTries = 3;

std::vector<std::byte> Encode(const Notice& notice) {
  WireWriter out;
  out.Number(notice.at_ms);
  out.Text(notice.where);
  Write(out, notice.activity);
  out.Text(notice.wanted);
  out.Number(notice.calls);
  out.Number(notice.judge);
  out.Numbers(notice.answers);
  const WireBytes bytes = out.Take();
  return {bytes.begin(), bytes.end()};
}

std::optional<Notice> Decode(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Notice notice;
  notice.at_ms = in.Number<int64_t>();
  notice.where = in.Text();
  notice.activity = ReadActivity(in);
  notice.wanted = in.Text();
  notice.calls = in.Number<int64_t>();
  notice.judge = in.Number<int32_t>();
  notice.answers = in.Numbers<uint64_t>();
  if (!in.Finish().ok()) return std::nullopt;
  return notice;
}

// Names have no limit, and a node may have many ranks. What says least goes first.
std::vector<std::byte> Fitting(Notice notice) {
  auto& waits = notice.activity.waits;
  waits.resize(std::min(waits.size(), kMostWaitsNoted));
  std::vector<std::byte> bytes = Encode(notice);
  for (std::string* text : {&notice.activity.doing, &notice.activity.last, &notice.wanted}) {
    if (bytes.size() <= kRoom) return bytes;
    text->clear();
    bytes = Encode(notice);
  }
  if (bytes.size() <= kRoom) return bytes;
  waits.clear();
  const size_t others = Encode(notice).size() - notice.answers.size() * sizeof(uint64_t);
  notice.answers.resize(std::min(notice.answers.size(), (kRoom - others) / sizeof(uint64_t)));
  return Encode(notice);
}

}  // namespace

uint64_t AnswerTo(const Notice& asker, bool submitted) {
  const uint64_t which = std::hash<std::string>{}(asker.wanted) +
                         static_cast<uint64_t>(asker.calls) * 0x9e3779b97f4a7c15;
  return (which | 1) << 1 | static_cast<uint64_t>(submitted);
}

void Post(NoticeWords& words, Notice notice) {
  const std::vector<std::byte> bytes = Fitting(std::move(notice));
  const uint32_t version = words.version.load(std::memory_order_relaxed) | 1;
  words.version.store(version, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  words.bytes.store(static_cast<uint32_t>(bytes.size()), std::memory_order_relaxed);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    words.words[at / sizeof(word)].store(word, std::memory_order_relaxed);
  }
  words.version.store(version + 1, std::memory_order_release);
}

std::optional<Notice> ReadNotice(const NoticeWords& words) {
  std::array<uint64_t, NoticeWords::kWords> copy;
  for (int tries = 0; tries < kTries; ++tries) {
    const uint32_t before = words.version.load(std::memory_order_acquire);
    if (before == 0 || before % 2 != 0) continue;
    const size_t bytes = std::min<size_t>(words.bytes.load(std::memory_order_relaxed), kRoom);
    for (size_t i = 0; i * sizeof(uint64_t) < bytes; ++i)
      copy[i] = words.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (words.version.load(std::memory_order_relaxed) != before) continue;
    return Decode(std::as_bytes(std::span(copy)).first(bytes));
  }
  return std::nullopt;
}

}  // namespace horon
