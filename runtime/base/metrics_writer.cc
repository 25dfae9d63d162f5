#include "runtime/base/metrics_writer.h"

#include <pthread.h>

#include <string_view>
#include <utility>

#include "runtime/base/absolute_path.h"
#include "runtime/base/log.h"
#include "runtime/base/replace_file.h"

namespace horon {
namespace {

constexpr const char* kVariable = "HORON_METRICS_FILE";

std::string PathOf(std::string path, int rank) {
  constexpr std::string_view kPlace = "{rank}";
  const size_t at = path.find(kPlace);
  if (at != std::string::npos) path.replace(at, kPlace.size(), std::to_string(rank));
  return AbsolutePath(path);
}

}  // namespace

Result<std::unique_ptr<MetricsWriter>> MetricsWriter::Start(const std::string& path, MetricsOf of,
                                                            std::chrono::milliseconds period,
                                                            std::shared_ptr<Counters> counters) {
  std::string place = PathOf(path, of.rank);
  HORON_TRY(ReplaceFile(kVariable, place, MetricsText(counters->Snapshot(), of)));
  std::unique_ptr<MetricsWriter> writer(
      new MetricsWriter(std::move(place), std::move(of), std::move(counters)));
  if (period.count() > 0)
    writer->thread_ = std::thread([w = writer.get(), period] { w->WriteEvery(period); });
  return writer;
}

MetricsWriter::~MetricsWriter() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  of_.running = false;
  const Status last = Write();
  if (!last.ok()) Log(LogLevel::kWarn, "metrics", last.message());
}

Status MetricsWriter::Write() {
  return ReplaceFile(kVariable, path_, MetricsText(counters_->Snapshot(), of_));
}

// Told once: a disk that is full stays so for a while.
void MetricsWriter::WriteEvery(std::chrono::milliseconds period) {
  pthread_setname_np(pthread_self(), "horon-metrics");
  bool told = false;
  while (Sleep(period)) {
    const Status status = Write();
    if (!status.ok() && !told) Log(LogLevel::kWarn, "metrics", status.message());
    told = !status.ok();
  }
}

// Whether to go on.
bool MetricsWriter::Sleep(std::chrono::milliseconds period) {
  const auto until = std::chrono::steady_clock::now() + period;
  MutexLock lock(mutex_);
  while (!ended_) {
    if (changed_.wait_until(mutex_, until) == std::cv_status::timeout) break;
  }
  return !ended_;
}

}  // namespace horon
