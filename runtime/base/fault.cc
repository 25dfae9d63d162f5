#include "runtime/base/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace horon {
namespace {

struct Plan {
  std::string action;
  std::atomic<int> passes{1};
};
Plan& The() {
  static Plan plan;
  return plan;
}

constexpr std::array<std::pair<const char*, FaultPhase>, 6> kPhases = {{
    {"init", FaultPhase::kInit},
    {"negotiate", FaultPhase::kNegotiate},
    {"copy_in", FaultPhase::kCopyIn},
    {"reduce", FaultPhase::kReduce},
    {"copy_out", FaultPhase::kCopyOut},
    {"shutdown", FaultPhase::kShutdown},
}};

// On stderr, in seconds of the monotonic clock: from here on counts how soon the others hear of it.
void SayWhen() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  dprintf(STDERR_FILENO, "horon: fault at %lld.%03ld\n", static_cast<long long>(now.tv_sec),
          now.tv_nsec / 1000000);
}

void Hold(const std::string& fifo) {
  close(open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
  close(open((fifo + ".go").c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

void fault::Strike() {
  if (The().passes.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  armed.store(FaultPhase::kNone, std::memory_order_relaxed);
  const std::string& action = The().action;
  SayWhen();
  if (action == "kill") kill(getpid(), SIGKILL);
  if (action == "stop") kill(getpid(), SIGSTOP);
  if (action == "segv") kill(getpid(), SIGSEGV);
  if (action == "exit0") _exit(0);
  if (action == "exit7") _exit(7);
  if (action.starts_with("hold=")) Hold(action.substr(5));
}

Status ArmFault(const std::string& plan) {
  if (plan.empty()) return Status::Ok();
  const size_t colon = plan.find(':');
  const size_t second = plan.find(':', colon + 1);
  const std::string action =
      colon == std::string::npos ? "" : plan.substr(colon + 1, second - colon - 1);
  const int passes = second == std::string::npos ? 1 : std::atoi(plan.c_str() + second + 1);
  bool known = action.starts_with("hold=");
  for (const char* one : {"kill", "stop", "segv", "exit0", "exit7"}) known = known || action == one;
  for (const auto& [name, phase] : kPhases) {
    if (plan.substr(0, colon) != name || !known || passes < 1) continue;
    The().action = action;
    The().passes.store(passes, std::memory_order_relaxed);
    fault::armed.store(phase, std::memory_order_release);
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "HORON_FAULT: '" + plan +
      "' is not <phase>:<action>[:<n-th pass>]; see runtime/base/fault.h");
}

}  // namespace horon
