#include "runtime/c_rounds.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/gossip/spec.h"
#include "runtime/peer/peer_wire.h"

namespace horon {
namespace {

using gossip::Graph;
using gossip::Neighbors;

Result<Graph> ReadGraph(const std::string& spec, int size) {
  HORON_ASSIGN(OpArguments arguments, OpArguments::Parse(spec));
  HORON_ASSIGN(const gossip::GraphSpec parsed, gossip::GraphSpec::Read(arguments));
  HORON_TRY(arguments.Finish());
  auto made = parsed.Make(size);
  if (!made.ok()) return arguments.Wrong(made.status().message());
  return made;
}

Status CheckSums(const Graph& graph, const std::string& spec, bool push_sum) {
  for (int64_t t = 0; t < std::max<int64_t>(1, graph.period()); ++t) {
    const gossip::Stochastic sums = gossip::StochasticOf(graph.At(t));
    if (push_sum ? sums.columns : sums.rows) continue;
    return Status::InvalidArgument("rounds " + std::string(push_sum ? "with" : "without") +
                                   " push-sum need " + (push_sum ? "columns" : "rows") +
                                   " that sum to 1, and those of '" + spec + "' do not in round " +
                                   std::to_string(t));
  }
  return Status::Ok();
}

std::vector<std::pair<int, double>> PairsOf(const Neighbors& neighbors) {
  std::vector<std::pair<int, double>> pairs;
  for (const gossip::Neighbor& one : neighbors) pairs.emplace_back(one.rank, one.weight);
  return pairs;
}

// Remembers the rows that come again.
std::function<RoundRow(int64_t)> RowsOf(const Graph& graph, int rank) {
  auto known = std::make_shared<std::map<int64_t, RoundRow>>();
  return [graph, rank, known](int64_t round) {
    const int64_t key = graph.period() > 0 ? round % graph.period() : round;
    const auto found = known->find(key);
    if (found != known->end()) return found->second;
    const gossip::Row row = gossip::RowOf(graph.At(round), rank);
    RoundRow made{row.self, PairsOf(row.from), PairsOf(row.to)};
    if (graph.period() > 0) (*known)[key] = made;
    return made;
  };
}

}  // namespace

Status SetRounds(const std::string& graph, int size, int rank, int64_t first, bool push_sum,
                 WindowShape* shape) {
  if (first < 0 || first >= kMostTensorRounds)
    return Status::InvalidArgument("rounds of '" + shape->name + "' count from 0 up, not from " +
                                   std::to_string(first));
  HORON_ASSIGN(const Graph made, ReadGraph(graph, size));
  HORON_TRY(CheckSums(made, graph, push_sum));
  auto rounds = std::make_shared<Rounds>();
  rounds->graph = graph;
  rounds->first = first;
  rounds->push_sum = push_sum;
  rounds->row = RowsOf(made, rank);
  std::set<int> in, out;
  for (int64_t t = 0; t < made.period(); ++t) {
    const RoundRow row = rounds->row(t);
    for (const auto& [other, weight] : row.from) in.insert(other);
    for (const auto& [other, weight] : row.to) out.insert(other);
  }
  for (int other = 0; made.period() == 0 && other < size; ++other) {  // it may be any
    if (other != rank) in.insert(other), out.insert(other);
  }
  shape->in.assign(in.begin(), in.end());
  shape->out.assign(out.begin(), out.end());
  shape->rounds = std::move(rounds);
  return Status::Ok();
}

}  // namespace horon
