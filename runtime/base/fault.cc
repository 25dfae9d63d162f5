#include "runtime/base/fault.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace horon {
namespace {

struct Plan {
  std::string action;
  std::string meeting;  // a fifo, or nothing
  bool lent = false;    // only on the program's first thread
  std::atomic<int> passes{1};
};
Plan& ThePlan() {
  static Plan plan;
  return plan;
}

constexpr const char* kLent = "lent";
constexpr std::array<std::pair<const char*, FaultPhase>, 9> kPhases = {{
    {"init", FaultPhase::kInit},
    {"negotiate", FaultPhase::kNegotiate},
    {"leave", FaultPhase::kLeave},
    {"copy_in", FaultPhase::kCopyIn},
    {"reduce", FaultPhase::kReduce},
    {"copy_out", FaultPhase::kCopyOut},
    {"message", FaultPhase::kMessage},
    {kLent, FaultPhase::kReduce},
    {"shutdown", FaultPhase::kShutdown},
}};

// On stderr, in seconds of the monotonic clock: from here on counts how soon the others hear of it.
void SayWhen() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  dprintf(STDERR_FILENO, "horon: fault at %lld.%03ld in process %d\n",
          static_cast<long long>(now.tv_sec), now.tv_nsec / 1000000, getpid());
}

// What two have written stays in the fifo until both have seen it.
void Meet(const std::string& fifo) {
  const int file = open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  int came = file >= 0 && write(file, "x", 1) == 1 ? 1 : 2;
  for (int patience = 500; came < 2 && patience > 0; --patience) {
    usleep(1000);
    if (ioctl(file, FIONREAD, &came) != 0) break;
  }
  close(file);
}

void Hold(const std::string& fifo) {
  close(open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
  close(open((fifo + ".go").c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

void fault::Strike() {
  if (ThePlan().lent && gettid() != getpid()) return;
  if (ThePlan().passes.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  armed.store(FaultPhase::kNone, std::memory_order_relaxed);
  const std::string& action = ThePlan().action;
  if (!ThePlan().meeting.empty()) Meet(ThePlan().meeting);
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
  std::array<std::string, 4> fields;  // phase, action, pass, fifo
  size_t from = 0;
  for (size_t i = 0; i < fields.size() && from <= plan.size(); ++i) {
    const size_t end = std::min(plan.find(':', from), plan.size());
    fields[i] = plan.substr(from, end - from);
    from = end + 1;
  }
  const std::string& action = fields[1];
  const int passes = fields[2].empty() ? 1 : std::atoi(fields[2].c_str());
  bool known = action.starts_with("hold=");
  for (const char* one : {"kill", "stop", "segv", "exit0", "exit7"}) known = known || action == one;
  for (const auto& [name, phase] : kPhases) {
    if (fields[0] != name || !known || passes < 1 || from <= plan.size()) continue;
    ThePlan().action = action;
    ThePlan().meeting = fields[3];
    ThePlan().lent = fields[0] == kLent;
    ThePlan().passes.store(passes, std::memory_order_relaxed);
    fault::armed.store(phase, std::memory_order_release);
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "HORON_FAULT: '" + plan +
      "' is not <phase>:<action>[:<n-th pass>[:<fifo>]]; see runtime/base/fault.h");
}

}  // namespace horon
