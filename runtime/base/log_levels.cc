#include "runtime/base/log_levels.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

namespace horon {
namespace {

constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info",
                                                     "warn",  "error", "off"};

// The parts that log.
constexpr std::array<std::string_view, 8> kComponents = {
    "autotune", "gpu", "metrics", "negotiator", "runtime", "stall", "timeline", "watchdog"};

std::optional<LogLevel> ParseLevel(std::string_view name) {
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i] == name) return static_cast<LogLevel>(i);
  }
  if (name == "warning") return LogLevel::kWarn;  // Horovod's spellings
  if (name == "fatal") return LogLevel::kError;
  return std::nullopt;
}

}  // namespace

Result<LogLevels> ParseLogLevels(std::string_view spec) {
  LogLevels levels;
  while (!spec.empty()) {
    const size_t comma = spec.find(',');
    const std::string_view part = spec.substr(0, comma);
    spec = comma == std::string_view::npos ? std::string_view{} : spec.substr(comma + 1);
    const size_t equals = part.find('=');
    std::string lower(equals == std::string_view::npos ? part : part.substr(equals + 1));
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    const auto parsed = ParseLevel(lower);
    if (!parsed) {
      return Status::InvalidArgument("'" + lower +
                                     "' is not a level; use one of trace, debug, info, warn, "
                                     "error, off, as in info,negotiator=trace");
    }
    if (equals == std::string_view::npos) {
      levels.of_all = *parsed;
      continue;
    }
    const std::string_view component = part.substr(0, equals);
    if (std::find(kComponents.begin(), kComponents.end(), component) == kComponents.end()) {
      std::string all;
      for (const std::string_view name : kComponents) (all += all.empty() ? "" : ", ") += name;
      return Status::InvalidArgument("'" + std::string(component) +
                                     "' is no part that logs; use one of " + all);
    }
    levels.by_component[std::string(component)] = *parsed;
  }
  return levels;
}

}  // namespace horon
