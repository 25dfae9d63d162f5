#include "ops/gossip/graph.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace horon::gossip {
namespace {

size_t At(int index) { return static_cast<size_t>(index); }

std::vector<int> OutDegrees(const Links& links) {
  std::vector<int> degrees(links.size());
  for (const auto& senders : links) {
    for (const int sender : senders) ++degrees[At(sender)];
  }
  return degrees;
}

// The weight of the link from `sender` to `receiver`.
double WeightOf(const Links& links, const std::vector<int>& out, Weights weights, int receiver,
                int sender) {
  const int heard = static_cast<int>(links[At(receiver)].size());
  switch (weights) {
    case Weights::kPush:
      return 1.0 / (out[At(sender)] + 1);
    case Weights::kMetropolis:
      return 1.0 / (1 + std::max(heard, static_cast<int>(links[At(sender)].size())));
    default:
      return 1.0 / (heard + 1);
  }
}

// Who is reached from participant 0 along `next`.
bool ReachesAll(const Links& next) {
  std::vector<char> seen(next.size());
  std::vector<int> open = {0};
  seen[0] = 1;
  size_t count = 1;
  while (!open.empty()) {
    const int at = open.back();
    open.pop_back();
    for (const int other : next[At(at)]) {
      if (std::exchange(seen[At(other)], 1) == 0) open.push_back(other), ++count;
    }
  }
  return count == next.size();
}

}  // namespace

Links Tidy(Links links) {
  for (size_t i = 0; i < links.size(); ++i) {
    auto& senders = links[i];
    std::erase(senders, static_cast<int>(i));
    std::sort(senders.begin(), senders.end());
    senders.erase(std::unique(senders.begin(), senders.end()), senders.end());
  }
  return links;
}

Links Circulant(int size, const std::vector<int>& offsets) {
  Links links(At(size));
  for (int i = 0; i < size; ++i) {
    for (const int offset : offsets) links[At(i)].push_back(((i - offset) % size + size) % size);
  }
  return Tidy(std::move(links));
}

Links LinksOf(const Round& round) {
  Links links(round.from.size());
  for (size_t i = 0; i < links.size(); ++i) {
    for (const Neighbor& neighbor : round.from[i]) links[i].push_back(neighbor.rank);
  }
  return links;
}

bool Symmetric(const Links& links) {
  for (size_t i = 0; i < links.size(); ++i) {
    for (const int j : links[i]) {
      const auto& back = links[At(j)];
      if (!std::binary_search(back.begin(), back.end(), static_cast<int>(i))) return false;
    }
  }
  return true;
}

Round Weigh(const Links& links, Weights weights) {
  if (weights == Weights::kNatural)
    weights = Symmetric(links) ? Weights::kMetropolis : Weights::kUniform;
  const std::vector<int> out = OutDegrees(links);
  Round round{std::vector<double>(links.size(), 1.0), std::vector<Neighbors>(links.size())};
  for (size_t i = 0; i < links.size(); ++i) {
    const int receiver = static_cast<int>(i);
    double heard = 0;
    bool equal = true;
    for (const int sender : links[i]) {
      const double weight = WeightOf(links, out, weights, receiver, sender);
      equal = equal && weight * static_cast<double>(links[i].size() + 1) == 1.0;
      round.from[i].push_back({sender, weight});
      heard += weight;
    }
    const double own = weights == Weights::kPush ? 1.0 / (out[i] + 1) : 1.0 - heard;
    // Where all weights are equal, so that no rounding tells this one apart.
    round.self[i] =
        equal && !links[i].empty() && weights != Weights::kPush ? round.from[i][0].weight : own;
  }
  return round;
}

Round Lazy(Round round) {
  for (size_t i = 0; i < round.self.size(); ++i) {
    round.self[i] = 0.5 + 0.5 * round.self[i];
    for (Neighbor& neighbor : round.from[i]) neighbor.weight *= 0.5;
  }
  return round;
}

Row RowOf(const Round& round, int participant) {
  Row row{round.self[At(participant)], round.from[At(participant)], {}, 0};
  for (int i = 0; i < round.size(); ++i) {
    row.most_heard = std::max(row.most_heard, round.from[At(i)].size());
    if (i == participant) continue;
    for (const Neighbor& neighbor : round.from[At(i)]) {
      if (neighbor.rank == participant) row.to.push_back({i, neighbor.weight});
    }
  }
  return row;
}

Stochastic StochasticOf(const Round& round) {
  Stochastic sums;
  std::vector<double> columns = round.self;
  for (size_t i = 0; i < round.self.size(); ++i) {
    double row = round.self[i];
    for (const Neighbor& neighbor : round.from[i]) {
      row += neighbor.weight;
      columns[At(neighbor.rank)] += neighbor.weight;
    }
    sums.rows = sums.rows && std::fabs(row - 1) <= kSumTolerance;
  }
  for (const double column : columns)
    sums.columns = sums.columns && std::fabs(column - 1) <= kSumTolerance;
  return sums;
}

bool Connected(const Graph& graph) {
  const auto size = At(graph.size());
  Links heard(size), told(size);
  for (int64_t t = 0; t < graph.period(); ++t) {
    const Links links = LinksOf(graph.At(t));
    for (size_t i = 0; i < size; ++i) {
      for (const int j : links[i]) {
        heard[i].push_back(j);
        told[At(j)].push_back(static_cast<int>(i));
      }
    }
  }
  return ReachesAll(heard) && ReachesAll(told);
}

}  // namespace horon::gossip
