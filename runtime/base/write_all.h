// WriteAll: bytes into a file, however many the system takes at a time. Any thread; blocks.
#pragma once

#include <errno.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>

namespace horon {

// From offset `at` on; false, with errno, when the file does not take them.
inline bool WriteAll(int fd, std::string_view bytes, int64_t at) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
    at += n;
  }
  return true;
}

}  // namespace horon
