#include "runtime/core/sleepers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace horon {
namespace {

constexpr std::chrono::milliseconds kAsleep{700};
constexpr long kRunning = -1, kUnknown = -2;
// The runtime's own threads; those of others that wait for a device or a socket of their own, by
// how their names begin.
constexpr std::array<std::string_view, 4> kOurs = {"horon", "horon-watch", "horon-timeline",
                                                   "horon-metrics"};
constexpr std::array<std::string_view, 4> kServants = {"cuda", "NCCL", "nccl", "pt_"};
constexpr std::string_view kLoader = "pt_data";  // torch's data loader: it feeds the program

std::string FolderOf(pid_t thread) { return "/proc/self/task/" + std::to_string(thread); }

// The number of the system call in which a thread sleeps. The kernel need not say.
long CallOf(pid_t thread) {
  std::string word;
  if (!(std::ifstream(FolderOf(thread) + "/syscall") >> word)) return kUnknown;
  long call = kRunning;
  std::from_chars(word.data(), word.data() + word.size(), call);
  return call;
}

uint64_t SwitchesOf(pid_t thread) {
  uint64_t switches = 0;
  std::ifstream status(FolderOf(thread) + "/status");
  for (std::string word; status >> word;) {
    uint64_t count = 0;
    if (word.ends_with("voluntary_ctxt_switches:") && status >> count) switches += count;
  }
  return switches;
}

bool WaitsForEvents(long call) {
#ifdef SYS_epoll_wait
  if (call == SYS_epoll_wait) return true;
#endif
  return call == SYS_epoll_pwait;
}

bool IsServant(pid_t thread) {
  std::string name;
  std::getline(std::ifstream(FolderOf(thread) + "/comm"), name);
  if (std::find(kOurs.begin(), kOurs.end(), name) != kOurs.end()) return true;
  return !name.starts_with(kLoader) &&
         std::any_of(kServants.begin(), kServants.end(),
                     [&](std::string_view start) { return name.starts_with(start); });
}

}  // namespace

bool Sleepers::Asleep(pid_t thread) {
  const auto now = std::chrono::steady_clock::now();
  Sleep& sleep = sleeps_[thread];
  const uint64_t switches = CallOf(thread) == SYS_futex ? SwitchesOf(thread) : 0;
  if (std::exchange(sleep.switches, switches) != switches) sleep.since = now;
  return switches != 0 && now - sleep.since >= kAsleep;
}

void Sleepers::KeepOnly(const std::vector<pid_t>& threads) {
  std::erase_if(sleeps_, [&](const auto& item) {
    return std::find(threads.begin(), threads.end(), item.first) == threads.end();
  });
}

bool Sleepers::OthersRest(const std::vector<pid_t>& threads) {
  const auto me = static_cast<pid_t>(syscall(SYS_gettid));
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    const std::string name = entry.path().filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (thread == me || std::find(threads.begin(), threads.end(), thread) != threads.end())
      continue;
    const long call = CallOf(thread);
    // It may have ended meanwhile, and has woken nobody then.
    const bool rests = call == SYS_futex || WaitsForEvents(call) || call == kUnknown;
    if (!rests && !IsServant(thread)) return false;
  }
  return !failed;
}

}  // namespace horon
