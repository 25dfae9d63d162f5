// main() of the MPI tests: opens the plugin that lies beside the program, runs the tests on every
// rank, and gives all ranks the same exit code. Rank 0 reports; the others print only when they
// fail.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "test/mpi/mpi_world.h"
#include "test/support/catch_runner.h"

namespace horon::test {
namespace {

void* plugin = nullptr;
std::unique_ptr<MpiWorld> world;

constexpr unsigned kLimitSeconds = 240;

// Two ranks that wait for each other for ever would otherwise keep the job.
void OnAlarm(int) {
  constexpr char kText[] = "horon: the MPI tests took too long; a rank hangs\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(124);
}

template <typename F>
F* Entry(const char* name) {
  return reinterpret_cast<F*>(dlsym(plugin, name));
}

bool OpenPlugin() {
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libhoron_mpi.so";
  plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr) {
    std::fprintf(stderr, "cannot open the plugin: %s\n", dlerror());
    return false;
  }
  return Entry<HoronMpiVersionFn>(kMpiVersionSymbol)() == kMpiPluginVersion;
}

int RunTests(int argc, char** argv) {
  std::vector<const char*> arguments(argv, argv + argc);
  arguments.insert(arguments.begin() + 1, {"--order", "decl"});
  if (world->rank() == 0) return RunCatch(arguments);
  std::ostringstream report;
  std::streambuf* terminal = std::cout.rdbuf(report.rdbuf());
  const int failures = RunCatch(arguments);
  std::cout.rdbuf(terminal);
  if (failures != 0) std::cerr << "--- rank " << world->rank() << "\n" << report.str();
  return failures;
}

int Main(int argc, char** argv) {
  std::signal(SIGALRM, OnAlarm);
  alarm(kLimitSeconds);
  if (!OpenPlugin()) return 2;
  world = OpenAnotherWorld();
  if (world == nullptr) return 2;
  const int mine = RunTests(argc, argv);
  const auto codes = world->Exchange(std::to_string(mine), {std::chrono::seconds{30}});
  bool failed = !codes.ok();
  for (size_t r = 0; codes.ok() && r < codes.value().size(); ++r)
    failed = failed || codes.value()[r] != "0";
  world.reset();
  Entry<HoronMpiFinalizeFn>(kMpiFinalizeSymbol)(10000);
  return failed ? 1 : 0;
}

}  // namespace

MpiWorld& World() { return *world; }

std::unique_ptr<MpiWorld> OpenAnotherWorld() {
  Status status;
  const Patience patience{std::chrono::seconds{30}};
  std::unique_ptr<MpiWorld> opened(Entry<HoronMpiOpenFn>(kMpiOpenSymbol)(&status, &patience));
  if (opened == nullptr) std::fprintf(stderr, "no world: %s\n", status.message().c_str());
  return opened;
}

}  // namespace horon::test

int main(int argc, char** argv) { return horon::test::Main(argc, argv); }
