#include "runtime/describe_signal.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace horon {
namespace {

int signal_fd = -1;  // written once, before the handler is installed

void OnSignal(int) {
  const int kept = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(signal_fd, &one, sizeof(one));
  errno = kept;
}

int Install() {
  struct sigaction now{};
  if (sigaction(SIGUSR1, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return -1;
  signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signal_fd < 0) return -1;
  struct sigaction action{};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  return signal_fd;
}

}  // namespace

int DescribeSignalFd() {
  static const int fd = Install();
  return fd;
}

}  // namespace horon
