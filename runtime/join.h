// Join: builds a runtime out of what the launcher offers. The one place that names concrete
// transports. Called by c_api.cc on the user's thread; blocks until all ranks are there, at most
// config.start_time.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/config.h"
#include "runtime/base/metrics_writer.h"
#include "runtime/core/runtime.h"
#include "runtime/gpu_plugin.h"
#include "runtime/mpi_plugin.h"
#include "runtime/transport/watch.h"

namespace horon {

// What outlives a single init: belongs to the process.
struct ProcessState {
  int generation = 0;                        // inits so far
  std::shared_ptr<LauncherSocket> launcher;  // under horonrun
  std::shared_ptr<Recorder> recorder;        // made by the first init; null when switched off
  MpiPlugin mpi;
  GpuPlugin gpu;
};

// One membership in a job, from init to shutdown; stays where it is made. Members are destroyed
// from the last to the first.
struct Job {
  std::unique_ptr<MpiWorld> mpi;
  std::unique_ptr<Watch> watch;
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<MetricsWriter> metrics;  // null unless asked for
  ProcessState* process = nullptr;
  std::string controller;  // "shm", "mpi", "self"
  std::string transport;   // "shm", "mpi", "shm+mpi", "self"

  void Start(RuntimeParts parts);
  Status StartMetrics();  // kInvalidArgument: the file cannot be written
  void TellTimes();       // to horonrun, for --explain
  void Leave();           // Runtime::Shutdown, then goodbye to node and launcher
};
// Leaves it; false: its thread is stuck in it, so it stays in memory.
bool EndJob(std::shared_ptr<Job> job);

Result<std::unique_ptr<Job>> Join(const Config& config, ProcessState& process);

}  // namespace horon
