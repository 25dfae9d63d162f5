#include "runtime/base/config.h"

#include <array>
#include <concepts>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "test/support/catch.h"

namespace horon {
namespace {

Result<Config> Read(const std::map<std::string, std::string>& variables) {
  return ReadConfig([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST_CASE("a wrong log level is an error that names the variable that was set") {
  for (const char* name : {"HORON_LOG", "HORON_LOG_LEVEL", "HOROVOD_LOG_LEVEL"}) {
    const auto wrong = Read({{name, "info,negotiator=loud"}});
    CHECK(wrong.status().code() == Code::kInvalidArgument);
    CHECK(wrong.status().message().starts_with(std::string(name) + ": 'loud' is not a level; "));
    const auto nobody = Read({{name, "info,nosuch=trace"}});
    CHECK(nobody.status().message().starts_with(std::string(name) + ": 'nosuch' is no part that "));
    CHECK(Read({{name, "WARNING,negotiator=fatal"}}).value().log == "WARNING,negotiator=fatal");
  }
}

TEST_CASE("HORON_LOG knows every part that logs") {
  const std::regex part(R"re((?:Log\(LogLevel::k\w+,\s*|kLogComponent = )"(\w+)")re");
  std::set<std::string> found;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(HORON_SOURCES) + "/runtime")) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (std::sregex_iterator it(text.begin(), text.end(), part), end; it != end; ++it)
      found.insert((*it)[1]);
  }
  CHECK(found.size() == 8);
  for (const std::string& name : found) CHECK(Read({{"HORON_LOG", name + "=info"}}).ok());
}

TEST_CASE("HORON_ wins over HOROVOD_, which is read where Horovod has the knob") {
  CHECK(Read({{"HOROVOD_FUSION_THRESHOLD", "7"}}).value().fusion_bytes == 7);
  CHECK(Read({{"HOROVOD_FUSION_THRESHOLD", "7"}, {"HORON_FUSION_THRESHOLD", "9"}})
            .value()
            .fusion_bytes == 9);
  CHECK(Read({{"HOROVOD_SPIN_TIME", "abc"}}).ok());  // no such knob there: not ours to judge
  CHECK(Read({{"HOROVOD_CONTROLLER", "gloo"}}).value().controller == "shm");
  CHECK(Read({{"HORON_CYCLE_TIME", "2.5"}}).value().cycle_time == std::chrono::microseconds(2500));
  CHECK_FALSE(Read({{"HORON_LEND", "off"}}).value().lend);
  CHECK_FALSE(Read({{"HORON_LEND", "False"}}).value().lend);
  CHECK(Read({{"HOROVOD_AUTOTUNE", "True"}}).value().autotune);
}

// What a field holds; durations in us.
std::string Shown(const std::string& value) { return value; }
std::string Shown(bool value) { return value ? "yes" : "no"; }
template <std::integral T>
  requires(!std::same_as<T, bool>)
std::string Shown(T value) {
  return std::to_string(value);
}
std::string Shown(std::chrono::microseconds value) { return std::to_string(value.count()) + " us"; }

std::map<std::string, std::string> Fields(const Config& config) {
#define HORON_FIELD(name) {#name, Shown(config.name)}
  std::map<std::string, std::string> fields = {
      HORON_FIELD(fusion_bytes),
      HORON_FIELD(cycle_time),
      HORON_FIELD(cache_capacity),
      HORON_FIELD(cma),
      HORON_FIELD(lend),
      HORON_FIELD(lock_schedule),
      HORON_FIELD(log),
      HORON_FIELD(log_time),
      HORON_FIELD(controller),
      HORON_FIELD(mpi_lib),
      HORON_FIELD(python_prefix),
      HORON_FIELD(nccl_lib),
      HORON_FIELD(cublas_lib),
      HORON_FIELD(nccl),
      HORON_FIELD(nccl_time),
      HORON_FIELD(nccl_max_ctas),
      HORON_FIELD(nccl_register),
      HORON_FIELD(inter),
      HORON_FIELD(local_size),
      HORON_FIELD(spin),
      HORON_FIELD(shm_chunk_bytes),
      HORON_FIELD(shm_far_ns),
      HORON_FIELD(shm_ring_bytes),
      HORON_FIELD(shutdown_time),
      HORON_FIELD(start_time),
      HORON_FIELD(stall_check),
      HORON_FIELD(stall_warn),
      HORON_FIELD(stall_shutdown),
      HORON_FIELD(stall_silence),
      HORON_FIELD(gossip_time),
      HORON_FIELD(recorder_events),
      HORON_FIELD(postmortem_dir),
      HORON_FIELD(timeline),
      HORON_FIELD(timeline_mark_cycles),
      HORON_FIELD(timeline_first_step),
      HORON_FIELD(timeline_end_step),
      HORON_FIELD(metrics_file),
      HORON_FIELD(metrics_period),
      HORON_FIELD(explain),
      HORON_FIELD(slice_bytes),
      HORON_FIELD(hierarchical),
      HORON_FIELD(autotune),
      HORON_FIELD(autotune_log),
      HORON_FIELD(autotune_file),
      HORON_FIELD(autotune_warmup),
      HORON_FIELD(autotune_steps),
      HORON_FIELD(autotune_samples),
      HORON_FIELD(mpi_cuda),
      HORON_FIELD(fault),
      HORON_FIELD(deterministic),
      HORON_FIELD(rank),
      HORON_FIELD(size),
      HORON_FIELD(launcher_fd),
  };
#undef HORON_FIELD
  for (const auto& [op, parameters] : config.op_defaults) {
    for (const auto& [key, value] : parameters) fields[op + ":" + key] = value;
  }
  return fields;
}

// What the variable changes, as "field=value field=value".
std::string Changed(const std::string& variable, const std::string& value) {
  const auto before = Fields(Config()), after = Fields(Read({{variable, value}}).value());
  std::string changed;
  for (const auto& [field, held] : after) {
    if (const auto it = before.find(field); it == before.end() || it->second != held)
      changed += (changed.empty() ? "" : " ") + field + "=" + held;
  }
  return changed;
}

TEST_CASE("each knob sets its own field, in its own unit, and no other") {
  const std::vector<std::array<const char*, 3>> cases = {
      {"FUSION_THRESHOLD", "7", "fusion_bytes=7"},
      {"CYCLE_TIME", "1.5", "cycle_time=1500 us"},
      {"CACHE_CAPACITY", "0", "cache_capacity=0"},
      {"LEND", "0", "lend=no"},
      {"LOCK_SCHEDULE", "0", "lock_schedule=no"},
      {"DETERMINISTIC", "0", "deterministic=no"},
      {"LOG_LEVEL", "info", "log=info"},
      {"LOG", "stall=trace", "log=stall=trace"},
      {"LOG_HIDE_TIME", "1", "log_time=no"},
      {"CONTROLLER", "MPI", "controller=mpi"},
      {"MPI_LIB", "/a", "mpi_lib=/a"},
      {"PYTHON_PREFIX", "/b", "python_prefix=/b"},
      {"NCCL", "0", "nccl=no"},
      {"NCCL_LIB", "/c", "nccl_lib=/c"},
      {"NCCL_TIMEOUT", "2.5", "nccl_time=2500000 us"},
      {"NCCL_MAX_CTAS", "4", "nccl_max_ctas=4"},
      {"NCCL_REGISTER", "1", "nccl_register=yes"},
      {"NCCL_REGISTER", "symmetric", "nccl_register=symmetric"},
      {"CUBLAS_LIB", "/d", "cublas_lib=/d"},
      {"INTER", "nccl", "inter=nccl"},
      {"LOCAL_SIZE", "3", "local_size=3"},
      {"SPIN_TIME", "9", "spin=9 us"},
      {"CMA", "0", "cma=no"},
      {"SHM_CHUNK_BYTES", "65536", "shm_chunk_bytes=65536"},
      {"SHM_FAR_NS", "0", "shm_far_ns=0"},
      {"SHM_RING_BYTES", "65536", "shm_ring_bytes=65536"},
      {"SHUTDOWN_TIMEOUT_SECONDS", "2", "shutdown_time=2000000 us"},
      {"START_TIMEOUT", "3", "start_time=3000000 us"},
      {"STALL_CHECK_DISABLE", "1", "stall_check=no"},
      {"STALL_CHECK_TIME_SECONDS", "4", "stall_warn=4000000 us"},
      {"STALL_SHUTDOWN_TIME_SECONDS", "5", "stall_shutdown=5000000 us"},
      {"STALL_SILENCE_SECONDS", "6", "stall_silence=6000000 us"},
      {"GOSSIP_TIMEOUT", "7", "gossip_time=7000000 us"},
      {"RECORDER_EVENTS", "0", "recorder_events=0"},
      {"POSTMORTEM_DIR", "/e", "postmortem_dir=/e"},
      {"TIMELINE", "/f", "timeline=/f"},
      {"TIMELINE_MARK_CYCLES", "1", "timeline_mark_cycles=yes"},
      {"TIMELINE_STEPS", "3:5", "timeline_end_step=5 timeline_first_step=3"},
      {"METRICS_FILE", "/g{rank}", "metrics_file=/g{rank}"},
      {"METRICS_PERIOD_SECONDS", "8", "metrics_period=8000000 us"},
      {"EXPLAIN", "1", "explain=yes"},
      {"SLICE_BYTES", "4096", "slice_bytes=4096"},
      {"HIERARCHICAL_ALLREDUCE", "0", "hierarchical=no"},
      {"HIERARCHICAL", "0", "hierarchical=no"},
      {"AUTOTUNE", "1", "autotune=yes"},
      {"AUTOTUNE_LOG", "/h", "autotune_log=/h"},
      {"AUTOTUNE_FILE", "/i", "autotune_file=/i"},
      {"AUTOTUNE_WARMUP_SAMPLES", "4", "autotune_warmup=4"},
      {"AUTOTUNE_STEPS_PER_SAMPLE", "5", "autotune_steps=5"},
      {"AUTOTUNE_MAX_SAMPLES", "60", "autotune_samples=60"},
      {"ADASUM_ALGO", "ring", "adasum:algo=ring"},
      {"ADASUM_CHUNK_BYTES", "65536", "adasum:chunk=65536"},
      {"ADASUM_MPI_CHUNK_SIZE", "65536", "adasum:chunk=65536"},
      {"ADASUM_SMALL_BYTES", "4096", "adasum:small=4096"},
      {"MPI_CUDA", "off", "mpi_cuda=off"},
      {"ADASUM_KERNEL", "cublas", "adasum:kernel=cublas"},
      {"FAULT", "x", "fault=x"},
      {"RANK", "2", "rank=2"},
      {"SIZE", "4", "size=4"},
      {"LAUNCHER_FD", "5", "launcher_fd=5"},
  };
  std::map<std::string, bool> known, tried;
  for (const Knob& knob : Knobs()) known[knob.name] = knob.horovod;
  for (const auto& [name, value, changes] : cases) {
    INFO(name);
    tried[name] = known[name];
    CHECK(Changed(std::string("HORON_") + name, value) == changes);
    CHECK(Changed(std::string("HOROVOD_") + name, value) == (known[name] ? changes : ""));
  }
  CHECK(tried == known);
}

TEST_CASE("a knob's own name wins over Horovod's other name for it") {
  CHECK(Read({{"HORON_LOG_LEVEL", "debug"}, {"HORON_LOG", "error"}}).value().log == "error");
  CHECK_FALSE(Read({{"HORON_HIERARCHICAL_ALLREDUCE", "1"}, {"HORON_HIERARCHICAL", "0"}})
                  .value()
                  .hierarchical);
}

TEST_CASE("a wrong value is an error that names the variable and the value") {
  const std::map<std::string, std::string> wrong = {
      {"HORON_FUSION_THRESHOLD", "abc"},    {"HORON_FUSION_THRESHOLD ", "-1"},
      {"HORON_CYCLE_TIME", "fast"},         {"HORON_LEND", "maybe"},
      {"HORON_CONTROLLER", "pigeon"},       {"HORON_SIZE", "0"},
      {"HORON_CACHE_CAPACITY", "1e3"},      {"HORON_SHM_CHUNK_BYTES", "1"},
      {"HORON_SLICE_BYTES", "1"},           {"HORON_START_TIMEOUT", ""},
      {"HORON_METRICS_FILE", "/x/all.prom"}, {"HORON_SPIN_TIME", "soon"}};
  for (const auto& [padded, value] : wrong) {
    const std::string name = padded.substr(0, padded.find(' '));
    const auto config = Read({{name, value}});
    INFO(name << "=" << value);
    REQUIRE_FALSE(config.ok());
    CHECK(config.status().code() == Code::kInvalidArgument);
    CHECK(config.status().message().find(name) != std::string::npos);
    CHECK(config.status().message().find("'" + value + "'") != std::string::npos);
  }
}

TEST_CASE("a number out of range is called that") {
  const auto says = [](const char* name, const char* value) {
    return Read({{name, value}}).status().message();
  };
  CHECK(says("HORON_SPIN_TIME", "2e9") ==
        "HORON_SPIN_TIME: '2e9' is out of range: at least 0, at most 1000000000 "
        "(us a blocking call looks for progress before it sleeps)");
  CHECK(says("HORON_SIZE", "0").starts_with("HORON_SIZE: '0' is out of range: at least 1"));
  CHECK(says("HORON_SPIN_TIME", "-1").starts_with("HORON_SPIN_TIME: '-1' is not a non-negative"));
  CHECK(says("HORON_SPIN_TIME", "inf").starts_with("HORON_SPIN_TIME: 'inf' is not a non-negative"));
}

TEST_CASE("variables that do nothing are told apart from those that do, and from other people's") {
  const char* const environment[] = {"HOROVOD_FUSION_THRESHOLD=1",
                                     "HOROVOD_TORUS_ALLREDUCE=1",
                                     "HOROVOD_GLOO_IFACE=eth0",
                                     "HOROVOD_FUSON_THRESHOLD=1",
                                     "HORON_CACHE_CAPACTY=1",
                                     "HORON_THREAD_AFFINITY=0,1",
                                     "HOROVOD_HIERARCHICAL_ALLREDUCE=0",
                                     "HORON_HIERARCHICAL_ALLREDUCE=0",
                                     "HOROVOD_WITH_PYTORCH=1",
                                     "HORON_LOCAL_RANK=0",
                                     "PATH=/bin",
                                     nullptr};
  const std::vector<std::string> found = IdleVariables(environment);
  REQUIRE(found.size() == 5);
  CHECK(found[0] ==
        "HORON_CACHE_CAPACTY has no effect: it is unknown; did you mean HORON_CACHE_CAPACITY?");
  CHECK(found[1] ==
        "HORON_THREAD_AFFINITY has no effect: a collective runs on the thread that waits for it");
  CHECK(found[2] ==
        "HOROVOD_FUSON_THRESHOLD has no effect: it is unknown; did you mean "
        "HOROVOD_FUSION_THRESHOLD?");
  CHECK(found[3].starts_with("HOROVOD_GLOO_IFACE has no effect: there is no gloo"));
  CHECK(found[4].starts_with("HOROVOD_TORUS_ALLREDUCE has no effect: "));
}

TEST_CASE("each variable of Horovod's runtime is a knob, or it is said why it does nothing") {
  std::istringstream names(
      "FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY BATCH_D2D_MEMCOPIES DISABLE_GROUP_FUSION "
      "ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER "
      "TORUS_ALLREDUCE AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE "
      "AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE TIMELINE "
      "TIMELINE_MARK_CYCLES STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS "
      "STALL_SHUTDOWN_TIME_SECONDS THREAD_AFFINITY MPI_THREADS_DISABLE ADASUM_MPI_CHUNK_SIZE "
      "DYNAMIC_PROCESS_SETS NUM_NCCL_STREAMS CONTROLLER CPU_OPERATIONS CCL_CACHE "
      "DISABLE_NVTX_RANGES LOG_LEVEL LOG_HIDE_TIME ELASTIC GLOO_IFACE GLOO_TIMEOUT_SECONDS "
      "GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT HOSTNAME RANK SIZE LOCAL_RANK LOCAL_SIZE "
      "CROSS_RANK CROSS_SIZE");
  int count = 0;
  for (std::string name; names >> name; ++count) {
    INFO(name);
    bool is_knob = false;
    for (const Knob& knob : Knobs()) is_knob = is_knob || (knob.horovod && name == knob.name);
    const std::string entry = "HOROVOD_" + name + "=1";
    const char* const environment[] = {entry.c_str(), nullptr};
    const std::vector<std::string> idle = IdleVariables(environment);
    CHECK(idle.size() == (is_knob ? 0u : 1u));
    for (const std::string& said : idle) CHECK(said.find("unknown") == std::string::npos);
  }
  CHECK(count == 44);
}

TEST_CASE(
    "docs/configuration.md lists every knob, with Horovod's name where it is accepted, and no "
    "other") {
  std::ifstream file(HORON_SOURCES "/docs/configuration.md");
  REQUIRE(file.good());
  std::map<std::string, bool> documented;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `HORON_")) continue;
    std::vector<std::string> cells;
    std::stringstream row(line);
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(cell);
    REQUIRE(cells.size() >= 5);
    documented[cells[1].substr(8, cells[1].rfind('`') - 8)] =
        cells[3].find("yes") != std::string::npos;
  }
  std::map<std::string, bool> known;
  for (const Knob& knob : Knobs()) known[knob.name] = knob.horovod;
  CHECK(documented == known);
}

}  // namespace
}  // namespace horon
