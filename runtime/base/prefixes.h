// HORON_PYTHON_PREFIX: the folders below which packages may have brought libraries.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace horon {

// Of a list with ':' between, those that are not empty, in order.
inline std::vector<std::string> PrefixesOf(const std::string& list) {
  std::vector<std::string> prefixes;
  std::istringstream all(list);
  for (std::string one; std::getline(all, one, ':');) {
    if (!one.empty()) prefixes.push_back(one);
  }
  return prefixes;
}

}  // namespace horon
