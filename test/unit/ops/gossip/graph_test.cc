// What holds for every topology, every number of participants and every round; and the peers that
// each is known for.
#include <bit>
#include <set>

#include "test/unit/ops/gossip/graphs.h"

namespace horon::gossip {
namespace {

bool SymmetricMatrix(const Round& round) {
  for (int i = 0; i < round.size(); ++i) {
    const Row row = RowOf(round, i);
    if (row.from != row.to) return false;
  }
  return true;
}

// T1 and T5: whoever is heard sends, nobody hears itself or anybody twice, peers within the claim.
bool LinksHold(const Round& round, int most) {
  std::vector<Row> rows;
  for (int i = 0; i < round.size(); ++i) rows.push_back(RowOf(round, i));
  size_t heard = 0, sent = 0;
  for (int i = 0; i < round.size(); ++i) {
    const Row& row = rows[static_cast<size_t>(i)];
    heard += row.from.size(), sent += row.to.size();
    if (most > 0 && row.from.size() > static_cast<size_t>(most)) return false;
    int last = -1;
    for (const Neighbor& from : row.from) {
      if (from.rank <= last || from.rank >= round.size() || from.rank == i) return false;
      last = from.rank;
      const Neighbors& to = rows[static_cast<size_t>(from.rank)].to;
      const bool sends = std::count(to.begin(), to.end(), Neighbor{i, from.weight}) == 1;
      if (from.weight <= 0 || !sends) return false;
    }
  }
  return heard == sent;
}

TEST_CASE("every topology: peers agree, weights sum to 1, for n = 1..130", "[gossip]") {
  for (const Claim& claim : kCatalogue) {
    for (int n = 1; n <= kSizes; ++n) {
      if (!Allowed(claim.sizes, n)) continue;
      INFO(claim.parameters << " of " << n);
      const Graph graph = MakeGraph(claim.parameters, n);
      const int64_t period = graph.period();
      // Two periods of the short ones; rounds far out of those that never repeat.
      const int64_t rounds = period == 0 ? 9 : std::min<int64_t>(2 * period, 40);
      for (int64_t t = 0; t < rounds; ++t) {
        const Round round = graph.At(t);
        REQUIRE(round.size() == n);
        REQUIRE(LinksHold(round, claim.peers));
        const Stochastic sums = StochasticOf(round);
        REQUIRE((sums.rows && sums.columns));
        if (claim.symmetric) REQUIRE(SymmetricMatrix(round));
        if (n == 1) REQUIRE((round.self[0] == 1 && round.from[0].empty()));
        if (period > 0 && t < period) REQUIRE(graph.At(t + period) == round);
      }
      if (period > 0) REQUIRE(Connected(graph));
    }
  }
}

// Everybody's only peer in a round, heard or sent to; -1: none.
int OnlyPeer(const Neighbors& neighbors) { return neighbors.empty() ? -1 : neighbors[0].rank; }

TEST_CASE("one-peer topologies meet whom they are known for", "[gossip]") {
  for (int n = 2; n <= kSizes; ++n) {
    const int period = std::bit_width(static_cast<unsigned>(n - 1));
    const Graph exponential = MakeGraph("graph=one_peer_exponential", n);
    const Graph cube = MakeGraph("graph=one_peer_hypercube", n);
    REQUIRE(exponential.period() == period);
    REQUIRE(cube.period() == period);
    for (int t = 0; t < 2 * period; ++t) {
      const int far = 1 << (t % period);
      const Round directed = exponential.At(t), paired = cube.At(t);
      bool as_known = true;
      for (int i = 0; i < n; ++i) {
        const int partner = i ^ far;
        const auto at = static_cast<size_t>(i);
        as_known = as_known && OnlyPeer(directed.from[at]) == (i - far + n) % n &&
                   OnlyPeer(paired.from[at]) == (partner < n ? partner : -1) &&
                   paired.self[at] == (partner < n ? 0.5 : 1.0) && directed.self[at] == 0.5;
      }
      REQUIRE(as_known);
    }
  }
}

TEST_CASE("bipartite exponential: odd ones meet even ones, 2^k - 1 further on", "[gossip]") {
  for (int n = 2; n <= kSizes; n += 2) {
    const Graph graph = MakeGraph("graph=bipartite_exponential", n);
    const int half = n / 2;
    REQUIRE(graph.period() ==
            (half == 1 ? 1 : std::bit_width(static_cast<unsigned>(half - 1)) + 1));
    for (int t = 0; t < graph.period(); ++t) {
      const Round round = graph.At(t);
      for (int a = 0; a < half; ++a) {
        const int passive = 2 * ((a + (1 << t) - 1) % half);
        REQUIRE(OnlyPeer(round.from[static_cast<size_t>(2 * a + 1)]) == passive);
        REQUIRE(OnlyPeer(round.from[static_cast<size_t>(passive)]) == 2 * a + 1);
      }
    }
  }
}

TEST_CASE("the six classic graphs: offsets in the order of their rounds", "[gossip]") {
  const auto offsets = [](const char* parameters, int n) {
    const Graph graph = MakeGraph(parameters, n);
    std::vector<int> all;
    for (int64_t t = 0; t < graph.period(); ++t) all.push_back(OnlyPeer(RowOf(graph.At(t), 0).to));
    return all;
  };
  using Offsets = std::vector<int>;
  CHECK(offsets("graph=directed_exponential", 8) == Offsets{1, 7, 2, 6, 4});
  CHECK(offsets("graph=directed_bipartite_exponential", 16) == Offsets{1, 15, 3, 13, 5, 11, 9, 7});
  CHECK(offsets("graph=directed_linear", 7) == Offsets{1, 6, 3, 4, 5, 2});
  CHECK(offsets("graph=directed_bipartite_linear", 6) == Offsets{1, 3, 5});
  CHECK(offsets("graph=ring_alternating", 6) == Offsets{1, 5});
  CHECK(offsets("graph=shift_one", 6) == Offsets{3, 4, 5});
}

TEST_CASE("rotation: another order of the participants in every period", "[gossip]") {
  for (const int n : {1, 2, 6, 8}) {
    const Graph graph = MakeGraph("graph=one_peer_exponential,rotate=1,seed=5", n);
    const int period = std::max(1, LogOf(n));
    REQUIRE(graph.period() == 0);
    std::set<std::vector<int>> orders;
    for (int64_t e = 0; e < 12; ++e) {
      const auto order = Shuffled(n, 5, static_cast<uint64_t>(e));
      orders.insert(order);
      for (int k = 0; k < period && n > 1; ++k) {
        const Round round = graph.At(e * period + k);
        for (int v = 0; v < n; ++v) {
          const int to = order[static_cast<size_t>((v + (1 << k)) % n)];
          REQUIRE(OnlyPeer(RowOf(round, order[static_cast<size_t>(v)]).to) == to);
        }
      }
    }
    REQUIRE(orders.size() >= (n > 2 ? 10u : 1u));
  }
}

TEST_CASE("hosts of the inner-outer graphs reach each other from every member", "[gossip]") {
  for (const char* parameters :
       {"graph=inner_outer_ring,local=4", "graph=inner_outer_exponential,local=4"}) {
    const Graph graph = MakeGraph(parameters, 20);
    for (int64_t t = 0; t < graph.period(); ++t) {
      const Round round = graph.At(t);
      for (int i = 0; i < 20; ++i) {
        const int from = OnlyPeer(round.from[static_cast<size_t>(i)]);
        REQUIRE((from >= 0 && (from / 4 != i / 4) == (i % 4 == t % 4)));
        if (i % 4 == t % 4) REQUIRE(from % 4 == i % 4);
      }
    }
  }
}

TEST_CASE("weights of every kind on a star, and lazy ones", "[gossip]") {
  const Round uniform = MakeGraph("graph=star,mixing=uniform", 5).At(0);
  CHECK(uniform.from[0][3].weight == 0.2);
  CHECK(uniform.from[3][0].weight == 0.5);
  CHECK((StochasticOf(uniform).rows && !StochasticOf(uniform).columns));
  const Round push = MakeGraph("graph=star,mixing=push", 5).At(0);
  CHECK(push.from[0][3].weight == 0.5);
  CHECK(push.from[3][0].weight == 0.2);
  CHECK(push.self[0] == 0.2);
  CHECK((!StochasticOf(push).rows && StochasticOf(push).columns));
  const Round lazy = MakeGraph("graph=star,lazy=1", 5).At(0);
  CHECK(lazy.from[0][0].weight == 0.1);
  CHECK(lazy.self[0] == Approx(0.6));
  CHECK(lazy.self[1] == Approx(0.9));
}

TEST_CASE("relabelling a user's graph relabels its matrix", "[gossip]") {  // M7
  const Round plain = MakeGraph("graph=custom,n=4,edges=0>1;1>0;1>2;2>1;2>3;3>2", 4).At(0);
  const std::vector<int> label = {2, 0, 3, 1};
  const Round other = MakeGraph("graph=custom,n=4,edges=2>0;0>2;0>3;3>0;3>1;1>3", 4).At(0);
  for (size_t i = 0; i < 4; ++i) {
    const auto there = static_cast<size_t>(label[i]);
    CHECK(other.self[there] == plain.self[i]);
    for (const Neighbor& from : plain.from[i]) {
      const Neighbor moved{label[static_cast<size_t>(from.rank)], from.weight};
      CHECK(std::count(other.from[there].begin(), other.from[there].end(), moved) == 1);
    }
  }
}

}  // namespace
}  // namespace horon::gossip
