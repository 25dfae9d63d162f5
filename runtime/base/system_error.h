// What the system says when a call fails, and which limit to raise where a limit is the reason.
// Used wherever the runtime asks the system for descriptors, memory or sockets.
#pragma once

#include <string>

namespace horon {

// "Too many open files (raise ulimit -n)"; `error` is an errno.
std::string SystemError(int error);

}  // namespace horon
