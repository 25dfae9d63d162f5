// A membership in a job once it has begun, and its end. How it is put together is in join.cc.
#include "runtime/base/fault.h"
#include "runtime/base/host_name.h"
#include "runtime/base/log.h"
#include "runtime/join.h"

namespace horon {

void Job::Start(RuntimeParts parts) {
  Record(parts.recorder, EventKind::kJoined, transport + ", negotiating over " + controller,
         parts.topology.size());
  Log(LogLevel::kInfo, "runtime",
      "rank " + std::to_string(parts.rank) + " of " + std::to_string(parts.topology.size()) +
          " joined over " + transport + ", negotiating over " + controller);
  try {
    runtime = std::make_unique<Runtime>(std::move(parts));
  } catch (const std::exception& error) {  // a thread cannot be started; the others count on it
    watch->SayLost(std::string("failed: ") + error.what());
    throw;
  }
  watch->OnDescribe([this] { runtime->Describe(); });
  watch->OnLook([this] { return runtime->WatchOver(); });
}

Status Job::StartMetrics() {
  const Config& config = runtime->config();
  if (config.metrics_file.empty()) return Status::Ok();
  MetricsOf of{runtime->rank(), runtime->topology().size(), HostName()};
  HORON_ASSIGN(metrics, MetricsWriter::Start(config.metrics_file, std::move(of),
                                             config.metrics_period, runtime->shared_counters()));
  return Status::Ok();
}

// In several packets: one is short.
void Job::TellTimes() {
  constexpr std::string_view kPrefix = "explain.";
  constexpr size_t kLongest = 400;
  std::string packet = "explain";
  for (const auto& [name, value] : runtime->counters().Snapshot()) {
    if (!name.starts_with(kPrefix)) continue;
    packet += " " + name.substr(kPrefix.size()) + "=" + std::to_string(value);
    if (packet.size() < kLongest) continue;
    watch->Tell(packet);
    packet = "explain";
  }
  if (packet != "explain") watch->Tell(packet);
}

void Job::Leave() {
  FaultPoint(FaultPhase::kShutdown);
  watch->OnDescribe(nullptr);
  runtime->Shutdown();
  watch->OnLook(nullptr);
  if (runtime->config().explain) TellTimes();
  metrics.reset();
  // MPI_Finalize waits for all ranks, so after a loss it would never return.
  if (runtime->lost() || runtime->stuck()) process->mpi.DoNotFinalize();
  watch->SayBye();
  Log(LogLevel::kInfo, "runtime", "left the job");
}

bool EndJob(std::shared_ptr<Job> job) {
  job->Leave();
  if (!job->runtime->stuck()) return true;
  [[maybe_unused]] auto* kept = new std::shared_ptr(std::move(job));
  return false;
}

}  // namespace horon
