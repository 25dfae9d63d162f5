// What holds for every topology, every number of participants and every round; and the peers that
// each is known for.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
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

void RequireHolds(const Claim& claim, int n, const Round& round) {
  REQUIRE(round.size() == n);
  REQUIRE(LinksHold(round, claim.peers));
  const Stochastic sums = StochasticOf(round);
  REQUIRE((sums.rows && sums.columns));
  if (claim.symmetric) REQUIRE(SymmetricMatrix(round));
  if (n == 1) REQUIRE((round.self[0] == 1 && round.from[0].empty()));
}

TEST_CASE("every topology: peers agree, weights sum to 1, for n = 1..130", "[gossip]") {
  for (const Claim& claim : kCatalogue) {
    for (int n = 1; n <= kSizes; ++n) {
      if (!Allowed(claim.sizes, n)) continue;
      INFO(claim.parameters << " of " << n);
      const Graph graph = MakeGraph(claim.parameters, n);
      const int64_t period = graph.period();
      const int64_t rounds = period == 0 ? 9 : 2 * period;  // of those that never repeat the first
      for (int64_t t = 0; t < rounds; ++t) {
        const Round round = graph.At(t);
        RequireHolds(claim, n, round);
        if (period > 0 && t < period) REQUIRE(graph.At(t + period) == round);
      }
      if (period > 0) REQUIRE(Connected(graph));
    }
  }
}

TEST_CASE("rounds far away are the same again, or new ones that hold, whatever was asked before",
          "[gossip]") {  // T1
  constexpr int64_t kFar = int64_t{1} << 40;
  for (const Claim& claim : kCatalogue) {
    for (int n = 1; n <= kSizes; ++n) {
      if (!Allowed(claim.sizes, n)) continue;
      INFO(claim.parameters << " of " << n);
      const Graph graph = MakeGraph(claim.parameters, n);
      for (int64_t t = 0; t < graph.period(); ++t)
        REQUIRE(graph.At(kFar * graph.period() + t) == graph.At(t));
      if (graph.period() > 0) continue;
      std::map<int64_t, Round> seen;
      for (const int64_t t : {kFar, int64_t{1'000'000}, int64_t{64}, int64_t{63}, int64_t{0}}) {
        seen[t] = graph.At(t);
        RequireHolds(claim, n, seen[t]);
      }
      for (const auto& [t, round] : seen) REQUIRE(graph.At(t) == round);
      // Two of so many are the same by a number that has lost its upper bits only.
      if (n >= 16) REQUIRE((seen[kFar] != seen[0] && seen[kFar] != seen[64]));
    }
  }
}

bool Dyadic(double weight) { return std::ldexp(weight, 40) == std::floor(std::ldexp(weight, 40)); }

// Sums of a round's weights by receiver and by sender, and whether all weights are dyadic.
struct Sums {
  std::vector<double> rows, columns;
  bool dyadic = true;
  explicit Sums(const Round& round) : rows(round.self), columns(round.self) {
    for (const double self : round.self) dyadic = dyadic && Dyadic(self);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const Neighbor& from : round.from[i]) {
        rows[i] += from.weight, columns[static_cast<size_t>(from.rank)] += from.weight;
        dyadic = dyadic && Dyadic(from.weight);
      }
    }
  }
};

// Whether all are 1: to the bit where the weights are dyadic, else to n rounding errors.
bool SumToOne(const std::vector<double>& sums, bool dyadic) {
  const double bound = dyadic ? 0 : static_cast<double>(sums.size()) * 0x1p-52;
  return std::all_of(sums.begin(), sums.end(),
                     [&](double sum) { return std::fabs(sum - 1) <= bound; });
}

TEST_CASE("every topology: sums of weights are exact if these are dyadic, else to rounding",
          "[gossip]") {  // T2
  int exact = 0, rounded = 0;
  for (const Claim& claim : kCatalogue) {
    for (int n = 1; n <= kSizes; ++n) {
      if (!Allowed(claim.sizes, n)) continue;
      INFO(claim.parameters << " of " << n);
      const Graph graph = MakeGraph(claim.parameters, n);
      const int64_t rounds = graph.period() == 0 ? 9 : std::min<int64_t>(graph.period(), 20);
      for (int64_t t = 0; t < rounds; ++t) {
        const Sums sums(graph.At(t));
        REQUIRE(SumToOne(sums.rows, sums.dyadic));
        REQUIRE(SumToOne(sums.columns, sums.dyadic));
        ++(sums.dyadic ? exact : rounded);
      }
    }
  }
  CHECK((exact > 1000 && rounded > 1000));
}

// Of other weights than the topology's own: which sums are 1, whatever the links.
struct Mixed {
  const char* parameters;
  bool rows, columns;
};

// Whether everybody hears others (&Row::from), or is heard (&Row::to), with its own weight.
bool AsOwn(const Round& round, Neighbors Row::* side) {
  for (int i = 0; i < round.size(); ++i) {
    const Row row = RowOf(round, i);
    for (const Neighbor& other : row.*side) {
      if (other.weight != row.self) return false;
    }
  }
  return true;
}

bool SumsAs(const Mixed& mixed, const Round& round) {
  const Sums sums(round);
  return (!mixed.rows || SumToOne(sums.rows, sums.dyadic)) &&
         (!mixed.columns || SumToOne(sums.columns, sums.dyadic));
}

// The same links; a half of every weight, and the other half to itself.
bool LazyOf(const Round& round, const Round& lazy) {
  bool halves = LinksOf(lazy) == LinksOf(round);
  for (size_t i = 0; halves && i < round.from.size(); ++i) {
    halves = lazy.self[i] >= 0.5 && lazy.self[i] == 0.5 + round.self[i] / 2;
    for (size_t j = 0; halves && j < round.from[i].size(); ++j)
      halves = lazy.from[i][j].weight == round.from[i][j].weight / 2;
  }
  return halves;
}

TEST_CASE("every topology with weights of every kind: their sums are 1, the links stay",
          "[gossip]") {  // T2
  constexpr Mixed kUniform{"mixing=uniform", true, false}, kPush{"mixing=push", false, true},
      kMetropolis{"mixing=metropolis", true, true}, kNatural{"mixing=natural", true, true};
  int refused = 0;
  for (const Claim& claim : kCatalogue) {
    for (const int n : {1, 2, 3, 5, 8, 12}) {
      if (!Allowed(claim.sizes, n)) continue;
      const Graph plain = MakeGraph(claim.parameters, n);
      const int64_t rounds = plain.period() == 0 ? 9 : std::min<int64_t>(plain.period(), 20);
      bool symmetric = true;
      for (int64_t t = 0; t < rounds; ++t) symmetric = symmetric && Symmetric(LinksOf(plain.At(t)));
      for (const Mixed& mixed : {kUniform, kPush, kMetropolis, kNatural}) {
        const std::string parameters = With(claim.parameters, mixed.parameters);
        INFO(parameters << " of " << n);
        const bool metropolis = mixed.parameters == kMetropolis.parameters;
        if (metropolis && !symmetric) {
          REQUIRE(TryGraph(parameters, n).status().code() == Code::kInvalidArgument);
          ++refused;
          continue;
        }
        const Graph weighed = MakeGraph(parameters, n);
        const Graph lazy = MakeGraph(With(parameters, "lazy=1"), n);
        REQUIRE(weighed.period() == plain.period());
        for (int64_t t = 0; t < rounds; ++t) {
          const Round round = weighed.At(t), lazily = lazy.At(t);
          REQUIRE(LinksOf(round) == LinksOf(plain.At(t)));
          REQUIRE((SumsAs(mixed, round) && SumsAs(mixed, lazily)));
          REQUIRE(LazyOf(round, lazily));
          if (mixed.parameters == kUniform.parameters) REQUIRE(AsOwn(round, &Row::from));
          if (mixed.parameters == kPush.parameters) REQUIRE(AsOwn(round, &Row::to));
          if (metropolis) REQUIRE((SymmetricMatrix(round) && SymmetricMatrix(lazily)));
        }
      }
    }
  }
  CHECK(refused > 20);
}

TEST_CASE("push-sum's weights keep their sum: to the bit if dyadic, else to rounding",
          "[gossip]") {  // M2
  for (const Claim& claim : kCatalogue) {
    for (const int n : {1, 2, 3, 4, 6, 8, 12, 16, 32, 128}) {
      if (!Allowed(claim.sizes, n)) continue;
      INFO(claim.parameters << " of " << n);
      const Graph graph = MakeGraph(With(claim.parameters, "mixing=push"), n);
      std::vector<double> weights(static_cast<size_t>(n));
      for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(1 + i % 3);
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      bool dyadic = true;
      for (int64_t t = 0; t < 6;
           ++t) {  // so far dyadic ones of 128 need no more than a double's bits
        const Round round = graph.At(t);
        dyadic = dyadic && Sums(round).dyadic;
        std::vector<double> after(weights.size());
        for (size_t i = 0; i < weights.size(); ++i) {
          after[i] = round.self[i] * weights[i];
          for (const Neighbor& from : round.from[i])
            after[i] += from.weight * weights[static_cast<size_t>(from.rank)];
        }
        weights = std::move(after);
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        const double bound = dyadic ? 0 : static_cast<double>(t + 1) * n * total * 0x1p-52;
        REQUIRE(std::fabs(sum - total) <= bound);
      }
    }
  }
}

int PowersBelow(int n, int base) {
  int count = 0;
  for (int far = 1; far < n; far *= base) ++count;
  return count;
}

TEST_CASE("a round has as many peers as are declared for that many participants",
          "[gossip]") {  // T5
  struct Line {
    const char* parameters;
    int (*declared)(int n);
  };
  for (const Line& line :
       {Line{"graph=complete", [](int n) { return n - 1; }},
        Line{"graph=star", [](int n) { return n - 1; }},
        Line{"graph=ring", [](int n) { return std::min(2, n - 1); }},
        Line{"graph=torus", [](int n) { return std::min(4, n - 1); }},
        Line{"graph=static_exponential", [](int n) { return PowersBelow(n, 2); }},
        Line{"graph=symmetric_exponential", [](int n) { return 2 * PowersBelow(n, 2); }},
        Line{"graph=symmetric_exponential,b=3", [](int n) { return 2 * PowersBelow(n, 3); }},
        Line{"graph=m_peer_exponential,k=5", [](int n) { return std::min(5, n - 1); }},
        Line{"graph=base,k=6", [](int n) { return std::min(6, n - 1); }},
        Line{"", [](int n) { return std::min(1, n - 1); }}}) {
    for (int n = 1; n <= kSizes; ++n) {
      INFO(line.parameters << " of " << n);
      const Graph graph = MakeGraph(line.parameters, n);
      for (int64_t t = 0; t < graph.period(); ++t) {
        const Round round = graph.At(t);
        size_t most = 0;
        for (int i = 0; i < n; ++i) {
          const Row row = RowOf(round, i);
          most = std::max({most, row.from.size(), row.to.size()});
        }
        REQUIRE(most <= static_cast<size_t>(line.declared(n)));
      }
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
  const Round other = MakeGraph("graph=star,centre=3,mixing=uniform", 5).At(0);
  CHECK(other.from[3] == Neighbors{{0, 0.2}, {1, 0.2}, {2, 0.2}, {4, 0.2}});
  for (const size_t leaf : {0, 1, 2, 4}) CHECK(other.from[leaf] == Neighbors{{3, 0.5}});
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
