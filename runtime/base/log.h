// Logging through spdlog, which is included in log.cc only. HORON_LOG=warn (default), or
// "info,negotiator=trace": a level for all, then levels by component.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace horon {

enum class LogLevel { kTrace = 0, kDebug, kInfo, kWarn, kError, kOff };

// Installs a HORON_LOG value (log_levels.h) for the process.
Status ConfigureLog(std::string_view spec, int rank, bool with_time = true);
// Any thread. `component` is a stage or transport: "runtime", "negotiator", "shm", "mpi".
void Log(LogLevel level, std::string_view component, const std::string& message);
bool LogEnabled(LogLevel level, std::string_view component);

}  // namespace horon
