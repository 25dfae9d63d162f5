#include "ops/gossip/neighborhood.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

namespace horon::gossip {
namespace {

// One participant's view, and the ranks that have it.
struct View {
  Neighborhood says;
  std::vector<int> ranks;
};
using Views = std::map<int, View>;  // by participant

std::string Listed(const std::vector<Neighbor>& neighbors, Between between) {
  if (neighbors.empty()) return between == Between::kRanks ? "no rank" : "no node";
  const std::string noun = between == Between::kRanks ? "rank" : "node";
  std::string text = noun + (neighbors.size() == 1 ? " [" : "s [");
  for (size_t i = 0; i < neighbors.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(neighbors[i].rank);
  return text + "]";
}

std::string Name(int participant, Between between) {
  return (between == Between::kRanks ? "rank [" : "node [") + std::to_string(participant) + "]";
}

Status Wrong(const Request& request, const std::string& what) {
  return Status::InvalidArgument("neighbors of tensor '" + request.name + "': " + what + ".");
}

// The lists of one request: within bounds, without itself and without repeats.
Status CheckLists(const Request& request, int rank, int64_t participants, bool weighted) {
  const std::vector<int64_t>& splits = request.splits;
  const std::string who = "rank [" + std::to_string(rank) + "] ";
  const auto length = static_cast<int64_t>(splits.size());
  if (length < 2 || splits[1] < 0 || splits[1] > length - 2)
    return Wrong(request, who + "gave no lists of sources and destinations");
  const size_t weights = weighted ? splits.size() - 1 : 0;
  if (request.weights.size() != weights)
    return Wrong(request, who + "gave " + std::to_string(request.weights.size()) +
                              " weights where there are " + std::to_string(weights));
  for (const double weight : request.weights) {
    if (!std::isfinite(weight)) return Wrong(request, who + "gave a weight that is not finite");
  }
  const auto middle = splits.begin() + 2 + splits[1];
  for (const auto& [begin, end] : {std::pair(splits.begin() + 2, middle), {middle, splits.end()}}) {
    std::set<int64_t> seen = {splits[0]};
    for (auto at = begin; at != end; ++at) {
      if (*at < 0 || *at >= participants || !seen.insert(*at).second)
        return Wrong(request, who + "lists " + std::to_string(*at) +
                                  ", which is itself, a repetition, or not from 0 to " +
                                  std::to_string(participants - 1));
    }
  }
  return Status::Ok();
}

Status Collect(std::span<const Request* const> by_rank, std::span<const int> ranks, Between between,
               bool weighted, Views& views) {
  for (size_t i = 0; i < by_rank.size(); ++i) {
    const Request& request = *by_rank[i];
    HORON_TRY(CheckLists(request, ranks[i], static_cast<int64_t>(by_rank.size()), weighted));
    const Neighborhood says = NeighborhoodOf(request);
    const bool wrong = says.me < 0 || says.me >= static_cast<int>(by_rank.size()) ||
                       (between == Between::kRanks && says.me != static_cast<int>(i));
    if (wrong)
      return Wrong(request, "rank [" + std::to_string(ranks[i]) + "] says it is participant " +
                                std::to_string(says.me));
    View& view = views[says.me];
    if (view.ranks.empty()) view.says = says;
    view.ranks.push_back(ranks[i]);
    if (view.says.self == says.self && view.says.sources == says.sources &&
        view.says.destinations == says.destinations)
      continue;
    return Wrong(request, "ranks [" + std::to_string(view.ranks[0]) + "] and [" +
                              std::to_string(ranks[i]) + "] of node [" + std::to_string(says.me) +
                              "] have different neighbors or weights: " +
                              Listed(view.says.sources, between) + " and " +
                              Listed(says.sources, between));
  }
  return Status::Ok();
}

bool Lists(const std::vector<Neighbor>& neighbors, int participant) {
  return std::any_of(neighbors.begin(), neighbors.end(),
                     [&](const Neighbor& n) { return n.rank == participant; });
}

// `mine` lists `peer`; the peer's other list must have `me`.
Status CheckBack(const Request& request, const Views& views, const View& view, bool hears,
                 Between between) {
  for (const Neighbor& n : hears ? view.says.sources : view.says.destinations) {
    const auto peer = views.find(n.rank);
    if (peer == views.end())
      return Wrong(request, Name(view.says.me, between) + " lists " + Name(n.rank, between) +
                                ", which does not exist");
    const auto& back = hears ? peer->second.says.destinations : peer->second.says.sources;
    if (Lists(back, view.says.me)) continue;
    const auto& own = hears ? view.says.sources : view.says.destinations;
    return Wrong(request, Name(view.says.me, between) + (hears ? " hears " : " sends to ") +
                              Listed(own, between) + ", but " + Name(n.rank, between) +
                              (hears ? " sends to " : " hears ") + Listed(back, between));
  }
  return Status::Ok();
}

using Says = std::map<int, Neighborhood>;  // by participant

Says SaysOf(std::span<const Request* const> by_rank) {
  Says all;
  for (const Request* request : by_rank) {
    Neighborhood says = NeighborhoodOf(*request);
    all.emplace(says.me, std::move(says));
  }
  return all;
}

// The receiver's times the sender's.
double WeightOf(const Says& all, const Neighbor& source, int receiver) {
  for (const Neighbor& to : all.at(source.rank).destinations) {
    if (to.rank == receiver) return source.weight * to.weight;
  }
  return source.weight;
}

}  // namespace

Neighborhood NeighborhoodOf(const Request& request) {
  Neighborhood says;
  says.me = static_cast<int>(request.splits[0]);
  if (!request.weights.empty()) says.self = request.weights[0];
  const auto sources = static_cast<size_t>(request.splits[1]);
  for (size_t i = 2; i < request.splits.size(); ++i) {
    const double weight = request.weights.empty() ? 1.0 : request.weights[i - 1];
    auto& list = i - 2 < sources ? says.sources : says.destinations;
    list.push_back({static_cast<int>(request.splits[i]), weight});
  }
  return says;
}

Status CheckNeighborhoods(std::span<const Request* const> by_rank, std::span<const int> ranks,
                          Between between, bool weighted) {
  Views views;
  HORON_TRY(Collect(by_rank, ranks, between, weighted, views));
  for (const auto& [participant, view] : views) {
    HORON_TRY(CheckBack(*by_rank[0], views, view, true, between));
    HORON_TRY(CheckBack(*by_rank[0], views, view, false, between));
  }
  return Status::Ok();
}

std::vector<int64_t> Told(std::span<const Request* const> by_rank) {
  std::vector<int64_t> told;
  const Says all = SaysOf(by_rank);
  for (const auto& [me, says] : all) {
    told.push_back(static_cast<int64_t>(says.sources.size()));
    told.push_back(std::bit_cast<int64_t>(says.self));
    for (const Neighbor& source : says.sources) {
      told.push_back(source.rank);
      told.push_back(std::bit_cast<int64_t>(WeightOf(all, source, me)));
    }
  }
  return told;
}

Row RowOf(const std::vector<int64_t>& told, int participant) {
  Row row;
  int hears = 0;
  for (size_t at = 0; at < told.size(); ++hears) {
    const auto sources = static_cast<size_t>(told[at]);
    row.most_heard = std::max(row.most_heard, sources);
    if (hears == participant) row.self = std::bit_cast<double>(told[at + 1]);
    at += 2;
    for (size_t i = 0; i < sources; ++i, at += 2) {
      const auto source = static_cast<int>(told[at]);
      const double weight = std::bit_cast<double>(told[at + 1]);
      if (hears == participant) row.from.push_back({source, weight});
      if (source == participant) row.to.push_back({hears, weight});
    }
  }
  std::sort(row.from.begin(), row.from.end(),
            [](const Neighbor& a, const Neighbor& b) { return a.rank < b.rank; });
  return row;
}

Status CheckSums(std::span<const Request* const> by_rank, const std::string& claimed) {
  const Says all = SaysOf(by_rank);
  std::map<int, double> rows, columns;
  for (const auto& [me, says] : all) {
    rows[me] += says.self;
    columns[me] += says.self;
    for (const Neighbor& source : says.sources) {
      const double weight = WeightOf(all, source, me);
      rows[me] += weight;
      columns[source.rank] += weight;
    }
  }
  for (const auto& [me, says] : all) {
    for (const bool row : {true, false}) {
      if (claimed != "both" && claimed != (row ? "rows" : "columns")) continue;
      const double sum = row ? rows[me] : columns[me];
      if (std::fabs(sum - 1) > kSumTolerance)
        return Wrong(*by_rank[0], "the weights that " + std::to_string(me) +
                                      (row ? " hears" : " sends") +
                                      ", its own one included, sum to " + std::to_string(sum) +
                                      ", not to 1 as was claimed");
    }
  }
  return Status::Ok();
}

}  // namespace horon::gossip
