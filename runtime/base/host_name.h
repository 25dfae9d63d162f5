// HostName: what this machine calls itself, as timelines and metrics say it. Any thread.
#pragma once

#include <unistd.h>

#include <string>

namespace horon {

inline std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace horon
