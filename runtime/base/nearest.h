// Of words that exist, the one that somebody may have meant by a word that does not.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace horon {

// At most two letters inserted, dropped, changed or swapped away, and fewer than half of `wrong`;
// the first of the nearest. Empty where there is none.
std::string Nearest(std::string_view wrong, std::span<const std::string_view> words);

// " (did you mean 'x'?)", or nothing.
std::string DidYouMean(std::string_view wrong, std::span<const std::string_view> words);

}  // namespace horon
