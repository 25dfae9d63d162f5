#include "runtime/core/node_letter.h"

#include <algorithm>
#include <utility>

#include "runtime/core/stall.h"
#include "runtime/core/wire_parts.h"

namespace horon {
namespace {

constexpr uint8_t kQuestion = 1, kAnswer = 2;
constexpr size_t kMostTold = 8, kLongestName = 256, kLongestPlace = 600, kLongestNote = 300;
constexpr size_t kLeastActivity = 40, kLeastNote = 8;  // bytes, with the rank

void Shorten(std::string& text, size_t longest) {
  if (text.size() > longest) text.resize(longest);
}

// The others keep their places in the lists of ranks.
void Shorten(NodeView& view) {
  size_t told = 0;
  for (auto& [rank, activity] : view.ranks) {
    if (!activity) continue;
    if (told++ >= kMostTold) activity = Activity();
    activity->waits.resize(std::min<size_t>(activity->waits.size(), 2));
    for (std::string& key : activity->waits) Shorten(key, kLongestName);
    Shorten(activity->last, kLongestName);
    Shorten(activity->doing, kLongestPlace);
  }
  while (view.notes.size() > kMostTold) view.notes.erase(std::prev(view.notes.end()));
  for (auto& [rank, note] : view.notes) Shorten(note, kLongestNote);
}

void Write(WireWriter& out, const NodeQuestion& letter) {
  out.Number(kQuestion);
  out.Number(letter.number);
  out.Text(letter.question.key);
  out.Number(letter.question.calls);
}

void Write(WireWriter& out, const NodeAnswer& letter) {
  out.Number(kAnswer);
  out.Number(letter.number);
  std::vector<int32_t> ready, missing;
  for (const auto& [rank, activity] : letter.view.ranks)
    (activity ? missing : ready).push_back(rank);
  out.Numbers(ready);
  out.Number(static_cast<uint32_t>(missing.size()));
  for (const int32_t rank : missing) {
    out.Number(rank);
    Write(out, *letter.view.ranks.at(rank));
  }
  out.Number(static_cast<uint32_t>(letter.view.notes.size()));
  for (const auto& [rank, note] : letter.view.notes) {
    out.Number(rank);
    out.Text(note);
  }
}

int32_t ReadRank(WireReader& in, int ranks) {
  const auto rank = in.Number<int32_t>();
  if (rank < 0 || rank >= ranks) in.Fail("a rank is out of range");
  return rank;
}

NodeQuestion ReadQuestion(WireReader& in) {
  NodeQuestion letter;
  letter.number = in.Number<uint64_t>();
  letter.question.key = in.Text();
  letter.question.calls = in.Number<int64_t>();
  if (letter.question.key.empty()) in.Fail("it asks for nothing");
  return letter;
}

NodeAnswer ReadAnswer(WireReader& in, int ranks) {
  NodeAnswer letter;
  letter.number = in.Number<uint64_t>();
  for (const int32_t rank : in.Numbers<int32_t>()) {
    if (rank < 0 || rank >= ranks) in.Fail("a rank is out of range");
    letter.view.ranks[rank];
  }
  const uint32_t missing = in.Count(kLeastActivity);
  for (uint32_t i = 0; i < missing; ++i) {
    const int32_t rank = ReadRank(in, ranks);
    letter.view.ranks[rank] = ReadActivity(in);
  }
  const uint32_t notes = in.Count(kLeastNote);
  for (uint32_t i = 0; i < notes; ++i) {
    const int32_t rank = ReadRank(in, ranks);
    letter.view.notes[rank] = in.Text();
  }
  return letter;
}

}  // namespace

void NodeView::Add(const NodeView& newer) {
  for (const auto& [rank, activity] : newer.ranks) ranks[rank] = activity;
  for (const auto& [rank, note] : newer.notes) notes[rank] = note;
}

std::vector<std::byte> Encode(NodeLetter letter) {
  if (auto* const answer = std::get_if<NodeAnswer>(&letter)) Shorten(answer->view);
  WireWriter out;
  std::visit([&](const auto& one) { Write(out, one); }, letter);
  const WireBytes bytes = out.Take();
  return {bytes.begin(), bytes.end()};
}

Result<NodeLetter> DecodeNodeLetter(std::span<const std::byte> bytes, int ranks) {
  WireReader in(bytes);
  NodeLetter letter;
  const auto kind = in.Number<uint8_t>();
  if (kind == kQuestion) {
    letter = ReadQuestion(in);
  } else if (kind == kAnswer) {
    letter = ReadAnswer(in, ranks);
  } else {
    in.Fail("its kind is unknown");
  }
  HORON_TRY(in.Finish());
  return letter;
}

std::string Describe(const NodeView& known, const std::string& key, const std::vector<int>& ranks,
                     std::chrono::steady_clock::time_point since,
                     std::chrono::steady_clock::time_point now, const std::string& unknown) {
  PendingTensor tensor{key, {}, {}, since};
  std::vector<std::optional<Activity>> activity(ranks.empty() ? 0 : ranks.back() + size_t{1});
  std::vector<int> others;
  for (const int rank : ranks) {
    const auto one = known.ranks.find(rank);
    if (one == known.ranks.end()) {
      others.push_back(rank);
    } else if (!one->second) {
      tensor.ready.push_back(rank);
    } else {
      tensor.missing.push_back(rank);
      activity[static_cast<size_t>(rank)] = one->second;
    }
  }
  return DescribePending(tensor, activity, now) +
         (others.empty() ? "" : "; " + unknown + " " + Listed(others));
}

}  // namespace horon
