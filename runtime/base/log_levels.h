// LogLevels: what HORON_LOG says, "info,negotiator=trace": a level for all, then levels by
// component. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace horon {

struct LogLevels {
  LogLevel of_all = LogLevel::kWarn;
  std::map<std::string, LogLevel, std::less<>> by_component;
};

Result<LogLevels> ParseLogLevels(std::string_view spec);

}  // namespace horon
