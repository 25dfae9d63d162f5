// Adasum in double on plain vectors, for tests: written from the definition, not from ops/adasum.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/transport/collectives.h"
#include "runtime/transport/topology.h"
#include "test/support/reference.h"

namespace horon::test {

inline double Inner(const Values& a, const Values& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}
inline double Norm(const Values& a) { return std::sqrt(Inner(a, a)); }
inline Values Scaled(double s, Values a) {
  for (double& x : a) x *= s;
  return a;
}
inline Values Plus(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}
// |a - b| / |b|; the length of a where b is zero.
inline double RelativeGap(const Values& a, const Values& b) {
  const double gap = Norm(Plus(a, Scaled(-1, b)));
  return Norm(b) > 0 ? gap / Norm(b) : gap;
}

// |result - want|, relative to the longest of want and the gradients: where gradients cancel, as
// those of one element do, the result is short beside what it was made of.
inline double GapOf(const Values& result, const Values& want, const std::vector<Values>& by_rank) {
  double length = Norm(want);
  for (const Values& gradient : by_rank) length = std::max(length, Norm(gradient));
  const double gap = Norm(Plus(result, Scaled(-1, want)));
  return length > 0 ? gap / length : gap;
}

// A vector that stands for some gradients.
struct Summand {
  Values value;
  double leaves = 1;
};

inline Summand AdasumPair(const Summand& x, const Summand& y) {
  const double dot = Inner(x.value, y.value);
  const double xx = Inner(x.value, x.value), yy = Inner(y.value, y.value);
  const double all = x.leaves + y.leaves;
  const double of_x = xx == 0 ? 1 : 1 - x.leaves / all * dot / xx;
  const double of_y = yy == 0 ? 1 : 1 - y.leaves / all * dot / yy;
  return {Plus(Scaled(of_x, x.value), Scaled(of_y, y.value)), all};
}

// The ranks beyond the largest power of two fold into the first ones, then neighbours combine.
inline Summand AdasumTree(std::vector<Summand> row) {
  size_t power = 1;
  while (2 * power <= row.size()) power *= 2;
  for (size_t i = power; i < row.size(); ++i) row[i - power] = AdasumPair(row[i - power], row[i]);
  row.resize(power);
  while (row.size() > 1) {
    std::vector<Summand> next;
    for (size_t i = 0; i < row.size(); i += 2) next.push_back(AdasumPair(row[i], row[i + 1]));
    row = next;
  }
  return row[0];
}

inline Values AdasumOf(const std::vector<Values>& by_rank) {
  std::vector<Summand> row;
  for (const Values& value : by_rank) row.push_back({value, 1});
  return AdasumTree(row).value;
}

// Over nodes: what each of them brings, and for how many leaves it stands. `local`: adasum, average
// or sum.
inline Values AdasumOverNodes(const Topology& topology, const std::vector<Values>& by_rank,
                              const std::string& local) {
  std::vector<Summand> row;
  for (int node = 0; node < topology.nodes(); ++node) {
    std::vector<Summand> of_node;
    Values sum(by_rank[0].size());
    for (const int rank : topology.members(node)) {
      of_node.push_back({by_rank[static_cast<size_t>(rank)], 1});
      sum = Plus(sum, by_rank[static_cast<size_t>(rank)]);
    }
    const auto size = static_cast<double>(of_node.size());
    if (local == "adasum") row.push_back(AdasumTree(of_node));
    if (local == "average") row.push_back({Scaled(1 / size, sum), size});
    if (local == "sum") row.push_back({sum, 1});
  }
  return AdasumTree(row).value;
}

// Along rings, each an order of the ranks: chunk c of a ring begins at position c + 1 and goes
// round to position c.
using Ring = std::vector<int>;
inline Values AdasumAlong(const std::vector<Ring>& rings, const std::vector<Values>& by_rank) {
  const auto count = static_cast<int64_t>(by_rank[0].size());
  const auto size = static_cast<int>(by_rank.size());
  const int chunks = size * static_cast<int>(rings.size());
  Values result(by_rank[0].size());
  for (int k = 0; k < chunks; ++k) {
    const int64_t begin = PartBegin(count, chunks, k), end = PartBegin(count, chunks, k + 1);
    const Ring& ring = rings[static_cast<size_t>(k / size)];
    const auto part_of = [&](int hop) {
      const Values& all =
          by_rank[static_cast<size_t>(ring[static_cast<size_t>((k % size + 1 + hop) % size)])];
      return Summand{Values(all.begin() + begin, all.begin() + end)};
    };
    Summand sum = part_of(0);
    for (int hop = 1; hop < size; ++hop) sum = AdasumPair(sum, part_of(hop));
    std::copy(sum.value.begin(), sum.value.end(), result.begin() + begin);
  }
  return result;
}

// Normal numbers as `dtype` holds them, with a part that all ranks share.
inline Values Gradient(DataType dtype, int rank, int64_t count, unsigned seed = 1) {
  // Kept: many cases ask for the same ones, and to draw them takes longer than what is tested.
  static std::mutex mutex;
  static std::map<std::tuple<unsigned, int, int64_t>, Values> drawn;
  Values values;
  {
    const std::lock_guard lock(mutex);
    Values& kept = drawn[{seed, rank, count}];
    if (kept.empty()) {
      std::mt19937 own(seed * 1000 + static_cast<unsigned>(rank)), common(seed);
      std::normal_distribution<double> normal;
      for (int64_t i = 0; i < count; ++i) kept.push_back(normal(own) + 0.5 * normal(common));
    }
    values = kept;
  }
  return Decode(dtype, Encode(dtype, values));
}

// What a path may differ from the reference: rounding of each of the log2(n) levels.
inline double AdasumTolerance(DataType dtype, int ranks) {
  const double eps = dtype == DataType::kFloat16    ? 0x1p-10
                     : dtype == DataType::kBFloat16 ? 0x1p-7
                     : dtype == DataType::kFloat32  ? 0x1p-23
                                                    : 0x1p-52;
  return 4 * eps * std::log2(std::max(2, ranks)) + 1e-12;
}

}  // namespace horon::test
