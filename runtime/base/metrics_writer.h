// MetricsWriter: keeps a rank's counters in a file that Prometheus' node exporter reads (its
// textfile collector), while HORON_METRICS_FILE asks for one.
//
// A thread of its own writes at a period and sleeps in between; the road knows nothing of it. Each
// writing is a new file that is renamed over the old one, so a reader finds a whole one at any
// time. The last one stays, and says that the rank runs no more. Made and ended by the user's
// thread that joins and leaves (job.cc).
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/counters.h"
#include "runtime/base/metrics.h"
#include "runtime/base/status.h"

namespace horon {

class MetricsWriter {
 public:
  // `path`: {rank} in it stands for the rank. `period` 0: only now and at the end.
  // kInvalidArgument when the file cannot be written.
  static Result<std::unique_ptr<MetricsWriter>> Start(const std::string& path, MetricsOf of,
                                                      std::chrono::milliseconds period,
                                                      std::shared_ptr<Counters> counters);
  ~MetricsWriter();  // writes for the last time
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

 private:
  MetricsWriter(std::string path, MetricsOf of, std::shared_ptr<Counters> counters)
      : path_(std::move(path)), of_(std::move(of)), counters_(std::move(counters)) {}
  Status Write();
  void WriteEvery(std::chrono::milliseconds period);
  bool Sleep(std::chrono::milliseconds period);

  std::string path_;
  MetricsOf of_;
  std::shared_ptr<Counters> counters_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  bool ended_ HORON_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace horon
