// Text that has to be shortened. Any thread.
#pragma once

#include <string_view>

namespace horon {

// The start of a text of UTF-8, at most `most` bytes of it: no character is cut in two.
inline std::string_view Shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  const auto inside = [text](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  size_t end = most;
  while (end > 0 && most - end < 4 && inside(end)) --end;
  return text.substr(0, inside(end) ? most : end);  // bytes that are no UTF-8 are cut anywhere
}

}  // namespace horon
