// Text that has to be shortened. Any thread.
#pragma once

#include <string>
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

// The same of a sentence, which then ends with three dots: `most` is at least that.
inline std::string ShortenedSentence(std::string_view text, size_t most) {
  constexpr std::string_view kDots = "...";
  std::string shown(text.size() <= most ? text : Shortened(text, most - kDots.size()));
  if (text.size() > most) shown += kDots;
  return shown;
}

}  // namespace horon
