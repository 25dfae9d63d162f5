#include "runtime/peer/window_row.h"

#include <algorithm>

namespace horon {
namespace {

constexpr size_t kFixed = 10;  // numbers before the four lists

std::string Describe(size_t rank, const WindowRow& row) {
  return "rank " + std::to_string(rank) + " " + std::string(NameOf(row.dtype)) + " " +
         ToString(row.shape) + (row.gets ? "" : " without gets");
}

std::string ListOf(const std::vector<int>& ranks) {
  return ToString(Shape(ranks.begin(), ranks.end()));
}

bool Has(const std::vector<int>& ranks, size_t rank) {
  return std::binary_search(ranks.begin(), ranks.end(), static_cast<int>(rank));
}

std::string HowItMixes(const WindowRow& row) {
  return row.rounds.empty() ? "in no rounds" : row.rounds;
}

// An edge that `from` has and `to` does not, or the other way round.
Status JudgeEdges(const std::string& name, const std::vector<WindowRow>& rows) {
  for (size_t from = 0; from < rows.size(); ++from) {
    for (size_t to = 0; to < rows.size(); ++to) {
      if (Has(rows[from].out, to) == Has(rows[to].in, from)) continue;
      return Status::InvalidArgument("the ranks disagree about the neighbors of the window '" +
                                     name + "': rank " + std::to_string(from) + " delivers to " +
                                     ListOf(rows[from].out) + ", rank " + std::to_string(to) +
                                     " hears of " + ListOf(rows[to].in));
    }
  }
  return Status::Ok();
}

}  // namespace

std::vector<int64_t> Encode(const WindowRow& row) {
  const std::string& text = row.made ? row.rounds : row.why_not;
  std::vector<int64_t> numbers = {row.made ? 1 : 0,
                                  static_cast<int64_t>(row.dtype),
                                  row.address.pid,
                                  row.address.fd,
                                  row.address.token,
                                  static_cast<int64_t>(row.shape.size()),
                                  static_cast<int64_t>(row.in.size()),
                                  static_cast<int64_t>(row.out.size()),
                                  static_cast<int64_t>(text.size()),
                                  row.gets ? 1 : 0};
  numbers.insert(numbers.end(), row.shape.begin(), row.shape.end());
  numbers.insert(numbers.end(), row.in.begin(), row.in.end());
  numbers.insert(numbers.end(), row.out.begin(), row.out.end());
  numbers.insert(numbers.end(), text.begin(), text.end());
  return numbers;
}

Result<WindowRow> DecodeWindowRow(std::span<const int64_t> numbers) {
  const Status wrong = Status::Internal("the numbers that a rank sent for a window make no sense");
  if (numbers.size() < kFixed || numbers[1] < 0 || numbers[1] >= kDataTypes) return wrong;
  size_t left = numbers.size() - kFixed;
  for (const int64_t count : numbers.subspan(5, 4)) {
    if (count < 0 || static_cast<uint64_t>(count) > left) return wrong;
    left -= static_cast<size_t>(count);
  }
  if (left != 0) return wrong;
  WindowRow row;
  row.made = numbers[0] != 0;
  row.dtype = static_cast<DataType>(numbers[1]);
  row.address = {numbers[2], numbers[3], numbers[4]};
  row.gets = numbers[9] != 0;
  auto at = numbers.begin() + kFixed;
  const auto take = [&](auto& list, int64_t count) {
    for (; count > 0; --count) list.push_back(static_cast<std::decay_t<decltype(list[0])>>(*at++));
  };
  take(row.shape, numbers[5]);
  take(row.in, numbers[6]);
  take(row.out, numbers[7]);
  std::string& text = row.made ? row.rounds : row.why_not;
  for (int64_t count = numbers[8]; count > 0; --count) text.push_back(static_cast<char>(*at++));
  return row;
}

Status JudgeWindow(const std::string& name, const std::vector<WindowRow>& rows) {
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank].made) continue;
    return Status::InvalidArgument("rank " + std::to_string(rank) +
                                   " could not make its part of the window '" + name +
                                   "': " + rows[rank].why_not);
  }
  for (size_t rank = 1; rank < rows.size(); ++rank) {
    if (rows[rank].dtype == rows[0].dtype && rows[rank].shape == rows[0].shape &&
        rows[rank].gets == rows[0].gets)
      continue;
    return Status::InvalidArgument("the ranks disagree about the window '" + name + "': " +
                                   Describe(0, rows[0]) + ", " + Describe(rank, rows[rank]));
  }
  for (size_t rank = 1; rank < rows.size(); ++rank) {
    if (rows[rank].rounds == rows[0].rounds) continue;
    return Status::InvalidArgument("the ranks disagree about the rounds of '" + name +
                                   "': rank 0 mixes " + HowItMixes(rows[0]) + ", rank " +
                                   std::to_string(rank) + " " + HowItMixes(rows[rank]));
  }
  return JudgeEdges(name, rows);
}

}  // namespace horon
