#include "runtime/core/timeline_counters.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/base/phases.h"

namespace horon {
namespace {

constexpr std::string_view kFamilies[] = {"gossip.bytes.to", "peer.bytes.to", "gossip.staleness",
                                          "window.staleness", "pair.staleness"};

}  // namespace

TimelineCounters::TimelineCounters(const Counters& counters)
    : counters_(counters), begun_(SteadyNow()), before_(Read()) {}

std::map<std::string, TimelineCounters::Family> TimelineCounters::Read() const {
  std::map<std::string, Family> families;
  for (const auto& [name, value] : counters_.Snapshot()) {
    const size_t dot = name.rfind('.');
    const std::string family = dot == std::string::npos ? "" : name.substr(0, dot);
    const auto* const end = std::end(kFamilies);
    if (std::find(std::begin(kFamilies), end, family) != end)
      families[family][name.substr(dot + 1)] = value;
  }
  return families;
}

// The first time from zero on, so that a track shows when it began to grow.
void TimelineCounters::Write(int64_t now, TimelineText& text, std::string& out) {
  for (auto& [name, family] : Read()) {
    bool any = false;
    for (auto& [word, value] : family) {
      const auto before = before_[name].find(word);
      if (before != before_[name].end()) value -= before->second;
      any = any || value != 0;
    }
    Family& told = told_[name];
    if (!any || told == family) continue;
    if (told.empty()) {
      Family zeros = family;
      for (auto& [word, value] : zeros) value = 0;
      text.WriteTrack(name, begun_, zeros, out);
    }
    text.WriteTrack(name, now, family, out);
    told = std::move(family);
  }
}

}  // namespace horon
