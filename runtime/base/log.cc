#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <map>
#include <optional>

#include "runtime/base/mutex.h"

namespace horon {
namespace {

constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info",
                                                     "warn",  "error", "off"};

std::optional<LogLevel> ParseLevel(std::string_view name) {
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i] == name) return static_cast<LogLevel>(i);
  }
  if (name == "warning") return LogLevel::kWarn;  // Horovod's spellings
  if (name == "fatal") return LogLevel::kError;
  return std::nullopt;
}

// One per process, whatever the number of runtimes in it: logs go to one stderr.
struct Sink {
  Mutex mutex;
  LogLevel level HORON_GUARDED_BY(mutex) = LogLevel::kWarn;
  std::map<std::string, LogLevel, std::less<>> by_component HORON_GUARDED_BY(mutex);
  std::shared_ptr<spdlog::logger> logger HORON_GUARDED_BY(mutex);
};
Sink& TheSink() {
  static Sink* sink = new Sink;  // leaked: threads may log while statics are destroyed
  return *sink;
}

}  // namespace

Status ConfigureLog(std::string_view spec, int rank, bool with_time) {
  LogLevel level = LogLevel::kWarn;
  std::map<std::string, LogLevel, std::less<>> by_component;
  while (!spec.empty()) {
    const size_t comma = spec.find(',');
    const std::string_view part = spec.substr(0, comma);
    spec = comma == std::string_view::npos ? std::string_view{} : spec.substr(comma + 1);
    const size_t equals = part.find('=');
    std::string lower(equals == std::string_view::npos ? part : part.substr(equals + 1));
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    const auto parsed = ParseLevel(lower);
    if (!parsed) {
      return Status::InvalidArgument(
          "HORON_LOG: '" + lower +
          "' is not a level; use one of trace, "
          "debug, info, warn, error, off, as in HORON_LOG=info,negotiator=trace");
    }
    if (equals == std::string_view::npos) {
      level = *parsed;
    } else {
      by_component[std::string(part.substr(0, equals))] = *parsed;
    }
  }
  Sink& sink = TheSink();
  MutexLock lock(sink.mutex);
  sink.level = level;
  sink.by_component = std::move(by_component);
  sink.logger = std::make_shared<spdlog::logger>(
      "horon", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  sink.logger->set_level(spdlog::level::trace);
  const std::string time = with_time ? "%Y-%m-%d %H:%M:%S.%f " : "";
  sink.logger->set_pattern(time + "horon[" + std::to_string(rank) + "] %^%l%$ %v");
  return Status::Ok();
}

bool LogEnabled(LogLevel level, std::string_view component) {
  Sink& sink = TheSink();
  MutexLock lock(sink.mutex);
  const auto it = sink.by_component.find(component);
  return level >= (it != sink.by_component.end() ? it->second : sink.level);
}

void Log(LogLevel level, std::string_view component, const std::string& message) {
  if (!LogEnabled(level, component)) return;
  constexpr std::array kSpdlog = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                  spdlog::level::warn, spdlog::level::err};
  std::shared_ptr<spdlog::logger> logger;
  {
    MutexLock lock(TheSink().mutex);
    logger = TheSink().logger;
  }
  if (logger) logger->log(kSpdlog[static_cast<size_t>(level)], "{}: {}", component, message);
}

}  // namespace horon
