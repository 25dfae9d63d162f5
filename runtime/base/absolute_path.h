// AbsolutePath: a path that stays right when the program changes its folder. Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace horon {

// An empty one stays empty, and one in a folder that is gone as it is.
inline std::string AbsolutePath(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed);
  return path.empty() || failed ? path : absolute.string();
}

}  // namespace horon
