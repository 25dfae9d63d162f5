// Graphs of the user's own: edges as text.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "ops/gossip/spec.h"

namespace horon::gossip {
namespace {

struct WeightedEdge {
  int from = 0, to = 0;
  double weight = 1;
  bool weighted = false;
};

Status Wrong(const std::string& what) {
  return Status::InvalidArgument("the graph's edges are wrong: " + what);
}

std::vector<std::string> Cut(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

template <typename T>
bool Parse(const std::string& text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc{} && end == text.data() + text.size();
}

Result<WeightedEdge> ReadEdge(const std::string& text, int size) {
  WeightedEdge edge;
  const size_t arrow = text.find('>'), star = text.find('*');
  const bool form =
      arrow != std::string::npos && Parse(text.substr(0, arrow), &edge.from) &&
      Parse(text.substr(arrow + 1, star == std::string::npos ? star : star - arrow - 1), &edge.to);
  if (!form) return Wrong("'" + text + "' is not from>to or from>to*weight");
  if (std::min(edge.from, edge.to) < 0 || std::max(edge.from, edge.to) >= size)
    return Wrong("'" + text + "' is not between participants 0 to " + std::to_string(size - 1));
  edge.weighted = star != std::string::npos;
  if (edge.weighted && (!Parse(text.substr(star + 1), &edge.weight) || !std::isfinite(edge.weight)))
    return Wrong("the weight in '" + text + "' is not a finite number");
  if (edge.weight < 0)
    return Wrong("the weight in '" + text + "' is negative: values would move apart");
  if (!edge.weighted && edge.from == edge.to)
    return Wrong("'" + text + "' leads from a participant to itself");
  return edge;
}

Status Put(Round& round, const WeightedEdge& edge, std::vector<char>& owns) {
  const auto to = static_cast<size_t>(edge.to);
  Neighbors& from = round.from[to];
  const bool twice = edge.from == edge.to
                         ? owns[to] != 0
                         : std::any_of(from.begin(), from.end(),
                                       [&](const Neighbor& n) { return n.rank == edge.from; });
  if (twice)
    return Wrong(std::to_string(edge.from) + ">" + std::to_string(edge.to) + " is given twice");
  if (edge.from == edge.to) {
    owns[to] = 1;
    round.self[to] = edge.weight;
  } else {
    from.push_back({edge.from, edge.weight});
  }
  return Status::Ok();
}

Result<Round> ReadRound(const std::string& text, int size, bool weighted) {
  Round round{std::vector<double>(static_cast<size_t>(size), 0.0),
              std::vector<Neighbors>(static_cast<size_t>(size))};
  std::vector<char> owns(static_cast<size_t>(size));
  for (const std::string& part : Cut(text, ';')) {
    if (part.empty() && text.empty()) break;  // a round in which nobody meets
    HORON_ASSIGN(const WeightedEdge edge, ReadEdge(part, size));
    if (edge.weighted != weighted)
      return Wrong("give every edge a weight, or none ('" + part + "' differs from the first one)");
    HORON_TRY(Put(round, edge, owns));
  }
  for (Neighbors& from : round.from) {
    std::erase_if(from, [](const Neighbor& n) { return n.weight == 0; });  // no link
    std::sort(from.begin(), from.end(),
              [](const Neighbor& a, const Neighbor& b) { return a.rank < b.rank; });
  }
  if (!weighted) return Weigh(LinksOf(round), Weights::kNatural);
  return round;
}

std::vector<double> SumsOf(const Round& round, bool row) {
  std::vector<double> sums = round.self;
  for (size_t r = 0; r < round.from.size(); ++r) {
    for (const Neighbor& n : round.from[r]) sums[row ? r : static_cast<size_t>(n.rank)] += n.weight;
  }
  return sums;
}

// The first participant whose weights do not sum to 1, as part of a sentence.
std::string FirstOff(const Round& round, bool row) {
  const std::vector<double> sums = SumsOf(round, row);
  for (size_t i = 0; i < sums.size(); ++i) {
    if (std::fabs(sums[i] - 1) > kSumTolerance)
      return "those that participant " + std::to_string(i) + (row ? " hears" : " sends") +
             " sum to " + std::to_string(sums[i]);
  }
  return "";
}

Status CheckSums(const Round& round, size_t t) {
  const Stochastic sums = StochasticOf(round);
  if (sums.rows || sums.columns) return Status::Ok();
  return Wrong(
      "with their own ones, neither the weights heard nor the weights sent sum to 1 for "
      "everybody in round " +
      std::to_string(t) + ": " + FirstOff(round, true) + ", " + FirstOff(round, false));
}

}  // namespace

Result<CustomRounds> ReadEdges(const std::string& text, int size) {
  CustomRounds custom;
  custom.weighted = text.find('*') != std::string::npos;
  for (const std::string& part : Cut(text, '/')) {
    HORON_ASSIGN(Round round, ReadRound(part, size, custom.weighted));
    HORON_TRY(CheckSums(round, custom.rounds.size()));
    custom.rounds.push_back(std::move(round));
  }
  const std::vector<Round>& rounds = custom.rounds;
  const Graph graph(size, static_cast<int64_t>(rounds.size()),
                    [&](int64_t t) { return rounds[static_cast<size_t>(t)]; });
  if (!Connected(graph))
    return Wrong("in all its rounds together, not everybody's value reaches everybody");
  return custom;
}

}  // namespace horon::gossip
