#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <utility>

#include "runtime/base/log_levels.h"
#include "runtime/base/mutex.h"

namespace horon {
namespace {

// One per process, whatever the number of runtimes in it: logs go to one stderr.
struct Sink {
  Mutex mutex;
  LogLevels levels HORON_GUARDED_BY(mutex);
  std::shared_ptr<spdlog::logger> logger HORON_GUARDED_BY(mutex);
};
Sink& TheSink() {
  static Sink* sink = new Sink;  // leaked: threads may log while statics are destroyed
  return *sink;
}

}  // namespace

Status ConfigureLog(std::string_view spec, int rank, bool with_time) {
  HORON_ASSIGN(LogLevels levels, ParseLogLevels(spec));
  Sink& sink = TheSink();
  MutexLock lock(sink.mutex);
  sink.levels = std::move(levels);
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
  const auto it = sink.levels.by_component.find(component);
  return level >= (it != sink.levels.by_component.end() ? it->second : sink.levels.of_all);
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
