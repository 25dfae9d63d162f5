// SIGUSR1 asks a rank what it waits for. A signal handler can reach nothing but a global and may do
// next to nothing, so it only writes to an eventfd, which the watch thread sleeps on.
#pragma once

namespace horon {

// Installs the handler, unless the program has one of its own for SIGUSR1, and gives the eventfd
// that becomes readable with each signal; -1 if there is none. The same one for all inits of a
// process.
int DescribeSignalFd();

}  // namespace horon
