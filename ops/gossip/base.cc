// Base-(k+1) graphs: n participants have the exact mean after a few rounds, for any n, with at most
// k peers a round. Source: Takezawa, Sato, Bao, Niwa, Yamada, Beyond Exponential Graph, NeurIPS
// 2023.
#include <algorithm>
#include <memory>
#include <utility>

#include "ops/gossip/topologies.h"

namespace horon::gossip {
namespace {

using Nodes = std::vector<int>;

struct Edge {
  int one, other;
  double weight;
};

// What happens in one round: members of a clique average, ends of an edge take each other's value
// with its weight. Nobody is in two cliques, or in a clique and at an edge.
struct Meeting {
  std::vector<Nodes> cliques;
  std::vector<Edge> edges;
};
using Meetings = std::vector<Meeting>;

// Adds `part` to the meetings from `first` on: other participants, at the same time.
void Beside(Meetings& meetings, const Meetings& part, size_t first) {
  if (meetings.size() < first + part.size()) meetings.resize(first + part.size());
  for (size_t i = 0; i < part.size(); ++i) {
    Meeting& to = meetings[first + i];
    to.cliques.insert(to.cliques.end(), part[i].cliques.begin(), part[i].cliques.end());
    to.edges.insert(to.edges.end(), part[i].edges.begin(), part[i].edges.end());
  }
}

// Factors of at most `most`, the largest first; *rest is what has none.
std::vector<size_t> FactorsOf(size_t count, size_t most, size_t* rest) {
  std::vector<size_t> factors;
  for (size_t factor = most; factor >= 2; --factor) {
    while (count % factor == 0) factors.push_back(factor), count /= factor;
  }
  *rest = count;
  return factors;
}

// Those who differ in one digit of a mixed-radix number average, digit by digit.
Meetings Hyper(const Nodes& nodes, size_t k) {
  size_t rest = 1, stride = 1;
  Meetings meetings;
  for (const size_t factor : FactorsOf(nodes.size(), k + 1, &rest)) {
    Meeting& meeting = meetings.emplace_back();
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (i / stride % factor != 0) continue;
      Nodes& clique = meeting.cliques.emplace_back();
      for (size_t digit = 0; digit < factor; ++digit) clique.push_back(nodes[i + digit * stride]);
    }
    stride *= factor;
  }
  return meetings;
}

// Nodes cut by the digits of their number in base k+1: `digit` sub-blocks of (k+1)^p each.
struct Block {
  Nodes nodes;
  size_t digit, part;
  Nodes Part(size_t i) const {
    const auto begin = nodes.begin() + static_cast<ptrdiff_t>(i * part);
    return Nodes(begin, begin + static_cast<ptrdiff_t>(part));
  }
};

std::vector<Block> BlocksOf(const Nodes& nodes, size_t base) {
  size_t power = 1;
  while (power * base <= nodes.size()) power *= base;
  std::vector<Block> blocks;
  auto at = nodes.begin();
  for (; power > 0; power /= base) {
    const size_t left = static_cast<size_t>(nodes.end() - at), digit = left / power;
    if (digit == 0) continue;
    const auto end = at + static_cast<ptrdiff_t>(digit * power);
    blocks.push_back({Nodes(at, end), digit, power});
    at = end;
  }
  return blocks;
}

// Every node behind block `donor` meets one node of each of its sub-blocks.
Meeting Donate(const std::vector<Block>& blocks, size_t donor) {
  const Block& from = blocks[donor];
  Nodes later;
  for (size_t i = donor + 1; i < blocks.size(); ++i)
    later.insert(later.end(), blocks[i].nodes.begin(), blocks[i].nodes.end());
  const double share = static_cast<double>(from.nodes.size()) /
                       static_cast<double>(from.nodes.size() + later.size());
  Meeting meeting;
  for (size_t i = 0; i < later.size(); ++i) {
    for (size_t part = 0; part < from.digit; ++part) {
      meeting.edges.push_back(
          {later[i], from.nodes[part * from.part + i], share / static_cast<double>(from.digit)});
    }
  }
  return meeting;
}

// Blocks average inside; each in turn gives to all that follow, and averages again.
Meetings Simple(const Nodes& nodes, size_t k) {
  size_t rest = 1;
  FactorsOf(nodes.size(), k + 1, &rest);
  if (rest == 1) return Hyper(nodes, k);
  const std::vector<Block> blocks = BlocksOf(nodes, k + 1);
  const size_t first = Hyper(blocks[0].nodes, k).size();
  Meetings meetings(first);
  for (const Block& block : blocks) {
    const Meetings inside = Hyper(block.nodes, k);
    for (size_t i = 0; i < first && !inside.empty(); ++i)
      Beside(meetings, {inside[i % inside.size()]}, i);
  }
  for (size_t donor = 0; donor + 1 < blocks.size(); ++donor) {
    Beside(meetings, {Donate(blocks, donor)}, first + donor);
    for (size_t part = 0; part < blocks[donor].digit; ++part)
      Beside(meetings, Hyper(blocks[donor].Part(part), k), first + donor + 1);
  }
  return meetings;
}

Meetings Base(const Nodes& nodes, size_t k) {
  size_t rest = 1;
  FactorsOf(nodes.size(), k + 1, &rest);
  Meetings whole = Simple(nodes, k);
  const size_t groups = nodes.size() / rest;
  if (rest == 1 || groups == 1) return whole;
  Meetings grouped;
  for (size_t group = 0; group < groups; ++group) {
    const auto begin = nodes.begin() + static_cast<ptrdiff_t>(group * rest);
    Beside(grouped, Simple(Nodes(begin, begin + static_cast<ptrdiff_t>(rest)), k), 0);
  }
  const size_t first = grouped.size();
  for (size_t i = 0; i < rest; ++i) {
    Nodes across;
    for (size_t group = 0; group < groups; ++group) across.push_back(nodes[group * rest + i]);
    Beside(grouped, Hyper(across, k), first);
  }
  // Of two that take as many rounds the grouped one has fewer links (so do the authors).
  return grouped.size() <= whole.size() ? grouped : whole;
}

Round RoundOf(size_t size, const Meeting& meeting) {
  Round round{std::vector<double>(size, 1.0), std::vector<Neighbors>(size)};
  for (const Nodes& clique : meeting.cliques) {
    const double weight = 1.0 / static_cast<double>(clique.size());
    for (const int i : clique) {
      round.self[static_cast<size_t>(i)] = weight;
      for (const int j : clique) {
        if (j != i) round.from[static_cast<size_t>(i)].push_back({j, weight});
      }
    }
  }
  for (const Edge& edge : meeting.edges) {
    round.self[static_cast<size_t>(edge.one)] -= edge.weight;
    round.self[static_cast<size_t>(edge.other)] -= edge.weight;
    round.from[static_cast<size_t>(edge.one)].push_back({edge.other, edge.weight});
    round.from[static_cast<size_t>(edge.other)].push_back({edge.one, edge.weight});
  }
  for (Neighbors& from : round.from) {
    std::sort(from.begin(), from.end(),
              [](const Neighbor& a, const Neighbor& b) { return a.rank < b.rank; });
  }
  return round;
}

}  // namespace

Result<Schedule> MakeBase(int size, const Parameters& parameters) {
  Nodes nodes;
  for (int i = 0; i < size; ++i) nodes.push_back(i);
  // More than size - 1 peers do not exist.
  const int64_t k = std::clamp<int64_t>(parameters.at("k"), 1, std::max(1, size - 1));
  const Meetings meetings = Base(nodes, static_cast<size_t>(k));
  auto rounds = std::make_shared<std::vector<Round>>();
  for (const Meeting& meeting : meetings) rounds->push_back(RoundOf(nodes.size(), meeting));
  if (rounds->empty()) rounds->push_back(RoundOf(nodes.size(), {}));
  const auto period = static_cast<int64_t>(rounds->size());
  return Schedule{period, nullptr,
                  [rounds](int64_t t) { return (*rounds)[static_cast<size_t>(t)]; }};
}

}  // namespace horon::gossip
