// Config: the one table of knobs, and the only place that reads the environment.
//
// Each knob is HORON_NAME; HOROVOD_NAME is accepted where Horovod has the same one, HORON_NAME
// wins. A value that does not parse is kInvalidArgument with the variable's name, never a silent
// default. docs/configuration.md is the user's view of this table (a test keeps the two equal).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace horon {

// By op: parameters that a spec of it gets where it leaves them open.
using OpDefaults = std::map<std::string, std::map<std::string, std::string>>;

inline constexpr int64_t kLeastSliceBytes = 4096;  // smaller ones are all headers

struct Config {
  int64_t fusion_bytes = 128 << 20;         // FUSION_THRESHOLD; 0: every tensor alone
  std::chrono::microseconds cycle_time{0};  // CYCLE_TIME (ms): wait this long for more tensors
  int64_t cache_capacity = 8192;            // CACHE_CAPACITY; 0: no response cache
  bool cma = true;                          // CMA: large messages are read where they lie
  bool lend = true;                         // LEND: blocking calls run the cycle themselves
  bool lock_schedule = true;                // LOCK_SCHEDULE: steady steps are not negotiated
  std::string log = "warn";                 // LOG
  bool log_time = true;                     // LOG_HIDE_TIME, the other way round
  std::string controller;                   // CONTROLLER: "", "shm" or "mpi"
  std::string mpi_lib;                      // MPI_LIB: path of libmpi
  std::string python_prefix;                // PYTHON_PREFIX: set by the Python package
  std::string nccl_lib, cublas_lib;         // NCCL_LIB, CUBLAS_LIB: paths of the libraries
  bool nccl = true;                         // NCCL: GPU tensors go over NCCL where they can
  int64_t nccl_max_ctas = 0;                // NCCL_MAX_CTAS; 0: NCCL chooses
  std::string nccl_register = "no";         // NCCL_REGISTER: what tensors are packed into
  std::string inter = "mpi";                // INTER: what moves GPU tensors between nodes
  int64_t local_size = 0;                   // LOCAL_SIZE: >0 pretends nodes of so many ranks
  std::chrono::microseconds spin{60};       // SPIN_TIME (us): longer than a wake-up takes
  int64_t shm_chunk_bytes = 256 << 10;      // SHM_CHUNK_BYTES: streaming unit
  int64_t shm_far_ns = 75;                  // SHM_FAR_NS: of a cache line of another rank
  int64_t shm_ring_bytes = 0;               // SHM_RING_BYTES: per pair; 0 chooses by node size
  std::chrono::milliseconds shutdown_time{5000};      // SHUTDOWN_TIMEOUT_SECONDS: limit of leaving
  std::chrono::milliseconds start_time{60000};        // START_TIMEOUT (s): limit of init
  bool stall_check = true;                            // STALL_CHECK_DISABLE, the other way round
  std::chrono::milliseconds stall_warn{60000};        // STALL_CHECK_TIME_SECONDS; 0: never
  std::chrono::milliseconds stall_shutdown{1800000};  // STALL_SHUTDOWN_TIME_SECONDS; 0: never
  std::chrono::milliseconds stall_silence{30000};     // STALL_SILENCE_SECONDS; 0: never
  std::chrono::milliseconds stall_look{500};          // no variable: a rank that waits asks then
  std::chrono::milliseconds gossip_time{60000};       // GOSSIP_TIMEOUT (s): of a late rank
  std::chrono::milliseconds nccl_time{600000};        // NCCL_TIMEOUT (s); 0: never
  int64_t recorder_events = 4096;                     // RECORDER_EVENTS; 0: no flight recorder
  std::string postmortem_dir;                         // POSTMORTEM_DIR
  std::string timeline;               // TIMELINE: file; "" and DYNAMIC: none at the start
  bool timeline_mark_cycles = false;  // TIMELINE_MARK_CYCLES
  uint64_t timeline_first_step = 0, timeline_end_step = UINT64_MAX;  // TIMELINE_STEPS
  std::string metrics_file;                                          // METRICS_FILE; "": none
  std::chrono::milliseconds metrics_period{10000};  // METRICS_PERIOD_SECONDS; 0: at the end only
  bool explain = false;                             // EXPLAIN
  int64_t slice_bytes = 0;              // SLICE_BYTES: unit of messages between nodes; 0 chooses
  bool hierarchical = true;             // HIERARCHICAL: sums inside nodes, then between them
  bool autotune = false;                // AUTOTUNE
  std::string autotune_log;             // AUTOTUNE_LOG: CSV; "": none
  std::string autotune_file;            // AUTOTUNE_FILE: keeps what was found; "": none
  int64_t autotune_warmup = 3;          // AUTOTUNE_WARMUP_SAMPLES
  int64_t autotune_steps = 10;          // AUTOTUNE_STEPS_PER_SAMPLE
  int64_t autotune_samples = 200;       // AUTOTUNE_MAX_SAMPLES
  OpDefaults op_defaults;               // ADASUM_*
  std::string mpi_cuda = "auto";        // MPI_CUDA: whether MPI gets memory of GPUs
  std::string fault;                    // FAULT: fail on purpose (fault.h)
  bool deterministic = true;            // DETERMINISTIC: no reductions of MPI's own
  // Where horonrun put this process; rank < 0 when it did not.
  int64_t rank = -1, size = -1;  // RANK, SIZE
  int64_t launcher_fd = -1;      // LAUNCHER_FD: socket to the launcher
};

// Returns the variable's value or null. Config::Read(getenv) in production, a map in tests.
using Environment = std::function<const char*(const char* name)>;

struct Knob {
  const char* name;     // without HORON_
  bool horovod;         // HOROVOD_ form accepted
  const char* meaning;  // one line, for docs and horonrun --check-build
  std::function<Status(Config&, const std::string& value)> set;
};
std::span<const Knob> Knobs();

Result<Config> ReadConfig(const Environment& get);
Result<Config> ReadConfig();  // the process's environment
// Of the names in `environment` ("NAME=value", ending with null) those that are set for nothing,
// each with why: HOROVOD_ names that mean nothing here, and names that are nearly a knob's.
std::vector<std::string> IdleVariables(const char* const* environment);
std::vector<std::string> IdleVariables();  // the process's environment
// Other variables (launchers' own: OMPI_COMM_WORLD_RANK, ...), so that getenv stays in one file.
const char* EnvironmentVariable(const char* name);

}  // namespace horon
