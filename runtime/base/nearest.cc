#include "runtime/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace horon {
namespace {

// Letters to insert, drop, change or swap with the next one, to make one of the other. (Optimal
// string alignment.)
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j - 1] + (same ? 0 : 1), last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string Nearest(std::string_view wrong, std::span<const std::string_view> words) {
  constexpr size_t kTypo = 2;
  size_t least = kTypo + 1;
  std::string nearest;
  for (const std::string_view word : words) {
    const size_t distance = Distance(wrong, word);
    if (distance >= least || 2 * distance >= wrong.size()) continue;
    least = distance;
    nearest = word;
  }
  return nearest;
}

std::string DidYouMean(std::string_view wrong, std::span<const std::string_view> words) {
  const std::string nearest = Nearest(wrong, words);
  return nearest.empty() ? "" : " (did you mean '" + nearest + "'?)";
}

}  // namespace horon
