// ReplaceFile: writes a small file so that nobody reads half of it. Any thread; blocks as files do.
#pragma once

#include <string>

#include "runtime/base/status.h"

namespace horon {

// A new one is renamed over an old one. kInvalidArgument, with the name of the variable that asked
// for the file: it cannot be written.
Status ReplaceFile(const std::string& variable, const std::string& path, const std::string& text);

}  // namespace horon
