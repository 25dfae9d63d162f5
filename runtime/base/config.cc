#include "runtime/base/config.h"

#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/base/log_levels.h"

namespace horon {
namespace {

Status Wrong(const std::string& value, const char* want) {
  return Status::InvalidArgument("'" + value + "' is not " + want);
}

Status OutOfRange(const std::string& value, int64_t least, int64_t most) {
  return Status::InvalidArgument(
      "'" + value + "' is out of range: at least " + std::to_string(least) +
      (most == INT64_MAX ? "" : ", at most " + std::to_string(most)));
}

using Setter = std::function<Status(Config&, const std::string&)>;

Setter Integer(int64_t Config::* field, int64_t least, int64_t most = INT64_MAX) {
  return [=](Config& config, const std::string& value) {
    char* end = nullptr;
    errno = 0;
    const long long parsed = std::strtoll(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0' || errno != 0) return Wrong(value, "a whole number");
    if (parsed < least || parsed > most) return OutOfRange(value, least, most);
    config.*field = parsed;
    return Status::Ok();
  };
}

constexpr int64_t kMostDuration = 1000000000;  // of whatever unit

// A duration given in units of `Unit`, fractions allowed.
template <typename Unit, typename Field>
Setter Duration(Field Config::* field) {
  return [=](Config& config, const std::string& value) {
    char* end = nullptr;
    const double parsed = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !std::isfinite(parsed) || parsed < 0)
      return Wrong(value, "a non-negative number");
    if (parsed > kMostDuration) return OutOfRange(value, 0, kMostDuration);
    config.*field = std::chrono::duration_cast<Field>(
        std::chrono::duration<double, typename Unit::period>(parsed));
    return Status::Ok();
  };
}

std::string Lower(const std::string& value) {
  std::string lower;
  for (const char c : value)
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

Result<bool> BooleanOf(const std::string& value) {
  const std::string said = Lower(value);  // a script may set str(True)
  if (said == "1" || said == "true" || said == "on" || said == "yes") return true;
  if (said == "0" || said == "false" || said == "off" || said == "no") return false;
  return Wrong(value, "a yes or no (1, 0, true, false, on, off)");
}

Setter Boolean(bool Config::* field) {
  return [=](Config& config, const std::string& value) {
    HORON_ASSIGN(config.*field, BooleanOf(value));
    return Status::Ok();
  };
}

Setter Inverted(bool Config::* field) {
  return [set = Boolean(field), field](Config& config, const std::string& value) {
    HORON_TRY(set(config, value));
    config.*field = !(config.*field);
    return Status::Ok();
  };
}

Setter Text(std::string Config::* field) {
  return [=](Config& config, const std::string& value) {
    config.*field = value;
    return Status::Ok();
  };
}

// Read here, so that the variable that was set is the one that an error names.
Status SetLog(Config& config, const std::string& value) {
  HORON_TRY(ParseLogLevels(value).status());
  config.log = value;
  return Status::Ok();
}

Status SetSliceBytes(Config& config, const std::string& value) {
  HORON_TRY(Integer(&Config::slice_bytes, 0, 1 << 30)(config, value));
  const bool possible = config.slice_bytes == 0 || config.slice_bytes >= kLeastSliceBytes;
  const std::string want = "0 or at least " + std::to_string(kLeastSliceBytes);
  return possible ? Status::Ok() : Wrong(value, want.c_str());
}

Status SetController(Config& config, const std::string& value) {
  std::string lower = Lower(value);
  // Horovod's "gloo" is its way without MPI.
  if (lower == "gloo") lower = "shm";
  if (lower != "shm" && lower != "mpi") return Wrong(value, "a controller; use shm or mpi");
  config.controller = lower;
  return Status::Ok();
}

Status SetTimelineSteps(Config& config, const std::string& value) {
  unsigned long long first = 0, end = 0;
  int used = 0;
  const bool given = value.find_first_of("+-. ") == std::string::npos &&
                     std::sscanf(value.c_str(), "%llu:%llu%n", &first, &end, &used) == 2;
  if (!given || static_cast<size_t>(used) != value.size() || first >= end)
    return Wrong(value, "a window of steps, first:end, such as 100:120");
  config.timeline_first_step = first;
  config.timeline_end_step = end;
  return Status::Ok();
}

Status SetMetricsFile(Config& config, const std::string& value) {
  if (!value.empty() && value.find("{rank}") == std::string::npos)
    return Wrong(value, "a file for each rank: put {rank} into its name");
  config.metrics_file = value;
  return Status::Ok();
}

Status SetInter(Config& config, const std::string& value) {
  if (value != "mpi" && value != "nccl")
    return Wrong(value, "a way between nodes; use mpi or nccl");
  config.inter = value;
  return Status::Ok();
}

Status SetNcclRegister(Config& config, const std::string& value) {
  if (value == "symmetric") {
    config.nccl_register = value;
    return Status::Ok();
  }
  const Result<bool> wanted = BooleanOf(value);
  if (!wanted.ok()) return Wrong(value, "a yes or no (1, 0, true, false, on, off), or symmetric");
  config.nccl_register = wanted.value() ? "yes" : "no";
  return Status::Ok();
}

Status SetMpiCuda(Config& config, const std::string& value) {
  if (value != "auto" && value != "on" && value != "off")
    return Wrong(value, "an answer; use auto, on or off");
  config.mpi_cuda = value;
  return Status::Ok();
}

Status CheckAdasumKernel(const std::string& value) {
  if (value == "fused" || value == "cublas") return Status::Ok();
  return Wrong(value, "a way to compute Adasum on GPUs; use fused or cublas");
}

// A knob that is a parameter of an op: so ranks that differ in it are told as those that differ in
// the op. What is the op's own default changes nothing.
Setter Parameter(std::string op, std::string key, std::string fallback,
                 std::function<Status(const std::string&)> check) {
  return [=](Config& config, const std::string& value) {
    HORON_TRY(check(value));
    if (value == fallback) {
      config.op_defaults[op].erase(key);
    } else {
      config.op_defaults[op][key] = value;
    }
    return Status::Ok();
  };
}

Status CheckAdasumAlgorithm(const std::string& value) {
  for (const char* known : {"auto", "halving", "doubling", "tree", "ring"}) {
    if (value == known) return Status::Ok();
  }
  return Wrong(value, "a path of Adasum; use auto, halving, doubling, tree or ring");
}

Status CheckBytes(const std::string& value) {
  Config scratch;
  return Integer(&Config::fusion_bytes, 0)(scratch, value);
}

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::vector<Knob>& Table() {
  static const std::vector<Knob> knobs = {
      {"FUSION_THRESHOLD", true, "bytes that are fused into one bucket; 0 runs every tensor alone",
       Integer(&Config::fusion_bytes, 0)},
      {"CYCLE_TIME", true, "ms to wait for more tensors before negotiating; 0 negotiates at once",
       Duration<milliseconds>(&Config::cycle_time)},
      {"CACHE_CAPACITY", true, "tensors whose agreement is remembered; 0 switches the cache off",
       Integer(&Config::cache_capacity, 0, 1 << 24)},
      {"LEND", false, "whether a blocking call runs the cycle on its own thread",
       Boolean(&Config::lend)},
      {"LOCK_SCHEDULE", false, "whether a step that comes again and again runs without negotiation",
       Boolean(&Config::lock_schedule)},
      {"DETERMINISTIC", false,
       "whether sums have the same bits in all runs; 0 lets MPI reduce blocks in its own order",
       Boolean(&Config::deterministic)},
      {"LOG_LEVEL", true, "Horovod's name of HORON_LOG", SetLog},
      {"LOG", false, "log level, and levels by component: info,negotiator=trace", SetLog},
      {"LOG_HIDE_TIME", true, "whether log lines come without the time",
       Inverted(&Config::log_time)},
      {"CONTROLLER", true, "how ranks negotiate: shm or mpi; chosen by the launcher if unset",
       SetController},
      {"MPI_LIB", false, "path of libmpi to open", Text(&Config::mpi_lib)},
      {"PYTHON_PREFIX", false,
       "prefixes, ':' between, whose lib/ may hold libmpi, NCCL and cuBLAS; set by the package",
       Text(&Config::python_prefix)},
      {"NCCL", false, "whether GPU tensors go over NCCL; 0: through the host",
       Boolean(&Config::nccl)},
      {"NCCL_LIB", false, "path of libnccl.so.2 to open", Text(&Config::nccl_lib)},
      {"NCCL_TIMEOUT", false,
       "s in which ranks meet in an NCCL communicator, and the GPU ends a collective; 0: any time",
       Duration<seconds>(&Config::nccl_time)},
      {"NCCL_MAX_CTAS", false,
       "blocks of a GPU that Horon's NCCL collectives take at most; 0: NCCL chooses",
       Integer(&Config::nccl_max_ctas, 0, 1024)},
      {"NCCL_REGISTER", false,
       "whether the memory that GPU tensors are packed into is registered with NCCL; symmetric: by "
       "all ranks together",
       SetNcclRegister},
      {"CUBLAS_LIB", false, "path of libcublas.so to open", Text(&Config::cublas_lib)},
      {"INTER", false, "what moves GPU tensors between nodes: mpi or nccl", SetInter},
      {"MPI_CUDA", false, "whether MPI reads the memory of GPUs itself: auto asks it; on; off",
       SetMpiCuda},
      {"LOCAL_SIZE", false, "pretends that blocks of so many ranks are nodes",
       Integer(&Config::local_size, 0, 1 << 20)},
      {"SPIN_TIME", false, "us a blocking call looks for progress before it sleeps",
       Duration<microseconds>(&Config::spin)},
      {"CMA", false,
       "whether ranks of a node read large messages out of each other's memory where the system "
       "lets",
       Boolean(&Config::cma)},
      {"SHM_CHUNK_BYTES", false, "bytes of a chunk that streams through shared memory",
       Integer(&Config::shm_chunk_bytes, 4096, 64 << 20)},
      {"SHM_FAR_NS", false,
       "ns for a cache line of another rank from which rows go past the caches; 0: always",
       Integer(&Config::shm_far_ns, 0)},
      {"SHM_RING_BYTES", false, "bytes of the message ring of each pair of ranks; 0 chooses",
       Integer(&Config::shm_ring_bytes, 0, 1 << 30)},
      {"SHUTDOWN_TIMEOUT_SECONDS", false, "s that shutdown waits for the other ranks",
       Duration<seconds>(&Config::shutdown_time)},
      {"START_TIMEOUT", true, "s that init waits for the other ranks",
       Duration<seconds>(&Config::start_time)},
      {"STALL_CHECK_DISABLE", true, "whether a tensor may wait for a busy rank for ever, silently",
       Inverted(&Config::stall_check)},
      {"STALL_CHECK_TIME_SECONDS", true, "s after which a tensor that waits for a rank is reported",
       Duration<seconds>(&Config::stall_warn)},
      {"STALL_SHUTDOWN_TIME_SECONDS", true,
       "s after which a tensor that waits for a busy rank fails; 0: never",
       Duration<seconds>(&Config::stall_shutdown)},
      {"STALL_SILENCE_SECONDS", false,
       "s without an answer after which a stopped rank is given up; 0: never",
       Duration<seconds>(&Config::stall_silence)},
      {"GOSSIP_TIMEOUT", false, "s that gossip, windows and pair averages wait for a rank at most",
       Duration<seconds>(&Config::gossip_time)},
      {"RECORDER_EVENTS", false, "events that the flight recorder keeps; 0 switches it off",
       Integer(&Config::recorder_events, 0, 1 << 24)},
      {"POSTMORTEM_DIR", false, "folder for the flight recorders' reports when a job fails",
       Text(&Config::postmortem_dir)},
      {"TIMELINE", true, "file for a timeline of all ranks; DYNAMIC waits for start_timeline",
       Text(&Config::timeline)},
      {"TIMELINE_MARK_CYCLES", true, "whether the timeline shows when cycles of the runtime begin",
       Boolean(&Config::timeline_mark_cycles)},
      {"TIMELINE_STEPS", false, "first:end of the steps that the timeline records",
       SetTimelineSteps},
      {"METRICS_FILE", false, "file for this rank's counters as Prometheus reads them; has {rank}",
       SetMetricsFile},
      {"METRICS_PERIOD_SECONDS", false, "s between two writings of it; 0: only at the end",
       Duration<seconds>(&Config::metrics_period)},
      {"EXPLAIN", false, "whether it is said at the end where the time of a step went",
       Boolean(&Config::explain)},
      {"SLICE_BYTES", false, "bytes of a bucket that travel between nodes as one; 0 chooses",
       &SetSliceBytes},
      {"HIERARCHICAL_ALLREDUCE", true, "Horovod's name of HORON_HIERARCHICAL",
       Boolean(&Config::hierarchical)},
      {"HIERARCHICAL", false,
       "whether sums are made inside each node, then between nodes; 0: each rank with each",
       Boolean(&Config::hierarchical)},
      {"AUTOTUNE", true, "whether rank 0 looks for the fastest way to cut the job's tensors",
       Boolean(&Config::autotune)},
      {"AUTOTUNE_LOG", true, "CSV file for what was measured", Text(&Config::autotune_log)},
      {"AUTOTUNE_FILE", false, "file that keeps what was found, and that a later job takes it from",
       Text(&Config::autotune_file)},
      {"AUTOTUNE_WARMUP_SAMPLES", true, "samples of steps before anything is measured",
       Integer(&Config::autotune_warmup, 0, 1 << 20)},
      {"AUTOTUNE_STEPS_PER_SAMPLE", true, "steps of which the median is taken",
       Integer(&Config::autotune_steps, 1, 1 << 20)},
      {"AUTOTUNE_MAX_SAMPLES", false, "the most samples, in all",
       Integer(&Config::autotune_samples, 36, 1 << 20)},
      {"ADASUM_ALGO", false, "path of Adasum: auto, halving, doubling, tree or ring",
       Parameter("adasum", "algo", "auto", CheckAdasumAlgorithm)},
      {"ADASUM_CHUNK_BYTES", false, "bytes of a chunk that Adasum exchanges; 0: whole messages",
       Parameter("adasum", "chunk", "1048576", CheckBytes)},
      {"ADASUM_SMALL_BYTES", false, "bytes of a bucket up to which Adasum goes by doubling",
       Parameter("adasum", "small", "65536", CheckBytes)},
      {"ADASUM_MPI_CHUNK_SIZE", true, "Horovod's name of HORON_ADASUM_CHUNK_BYTES",
       Parameter("adasum", "chunk", "1048576", CheckBytes)},
      {"ADASUM_KERNEL", false, "what computes Adasum on GPUs: fused (Horon's kernels) or cublas",
       Parameter("adasum", "kernel", "fused", CheckAdasumKernel)},
      {"FAULT", false, "makes this rank fail at a named place, for tests", Text(&Config::fault)},
      {"RANK", false, "this process's rank; set by horonrun", Integer(&Config::rank, 0, INT_MAX)},
      {"SIZE", false, "number of ranks; set by horonrun", Integer(&Config::size, 1, INT_MAX)},
      {"LAUNCHER_FD", false, "socket to the launcher; set by horonrun",
       Integer(&Config::launcher_fd, 0, INT_MAX)},
  };
  return knobs;
}

}  // namespace

std::span<const Knob> Knobs() { return Table(); }

Result<Config> ReadConfig(const Environment& get) {
  Config config;
  for (const bool horovod : {true, false}) {  // HORON_ comes second and wins
    for (const Knob& knob : Table()) {
      if (horovod && !knob.horovod) continue;
      const std::string name = std::string(horovod ? "HOROVOD_" : "HORON_") + knob.name;
      const char* value = get(name.c_str());
      if (value == nullptr) continue;
      const Status status = knob.set(config, value);
      if (!status.ok())
        return Status::InvalidArgument(name + ": " + status.message() + " (" + knob.meaning + ")");
    }
  }
  return config;
}

Result<Config> ReadConfig() {
  return ReadConfig([](const char* name) { return std::getenv(name); });
}

std::vector<std::string> IdleVariables() { return IdleVariables(environ); }

const char* EnvironmentVariable(const char* name) { return std::getenv(name); }

}  // namespace horon
