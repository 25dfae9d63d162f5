#include "runtime/base/config.h"

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
      {"HORON_METRICS_FILE", "/x/all.prom"}};
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
