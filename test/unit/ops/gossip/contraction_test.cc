// How fast the graphs of the catalogue contract: the tables of docs/gossip.md, and exactness.
#include "ops/gossip/contraction.h"

#include <cmath>
#include <complex>
#include <numbers>
#include <set>

#include "test/unit/ops/gossip/graphs.h"

namespace horon::gossip {
namespace {

double OfPeriod(const Graph& graph) { return Contraction(graph, 0, graph.period()); }

TEST_CASE("the largest singular value: diagonal, rank one, rotation", "[gossip]") {
  CHECK(LargestSingularValue({3, 0, 0, 0, -7, 0, 0, 0, 2}, 3) == Approx(7));
  CHECK(LargestSingularValue({1, 2, 2, 4}, 2) == Approx(5));
  CHECK(LargestSingularValue({0, 1, 0, 0, 0, 1, 1, 0, 0}, 3) == Approx(1));
  CHECK(LargestSingularValue({0}, 1) == 0);
  CHECK(LargestSingularValue({-2}, 1) == Approx(2));
}

TEST_CASE("static graphs contract as their formulas say", "[gossip]") {  // T4
  for (const int n : {3, 4, 5, 8, 16, 31, 64, 128}) {
    INFO(n);
    const double angle = std::numbers::pi / n;
    CHECK(OfPeriod(MakeGraph("graph=ring", n)) ==
          Approx((1 + 2 * std::cos(2 * angle)) / 3).margin(1e-12));
    CHECK(OfPeriod(MakeGraph("graph=ring_one_way", n)) == Approx(std::cos(angle)));
    CHECK(OfPeriod(MakeGraph("graph=star", n)) == Approx(1 - 1.0 / n));
    CHECK(OfPeriod(MakeGraph("graph=complete", n)) < 1e-14);
    if ((n & (n - 1)) != 0) continue;
    const int k = LogOf(n);
    CHECK(OfPeriod(MakeGraph("graph=static_exponential", n)) == Approx(1 - 2.0 / (k + 1)));
    CHECK(OfPeriod(MakeGraph("graph=hypercube", n)) == Approx(1 - 2.0 / (k + 1)));
  }
}

TEST_CASE("grids, tori and symmetric exponential graphs as in the table", "[gossip]") {
  struct Line {
    int n;
    double torus, grid, exponential;
  };
  for (const Line& line : {Line{4, 0.667, 0.667, 1}, Line{8, 0.5, 0.146, 0.667},
                           Line{16, 0.4, 0.131, 0.5}, Line{32, 0.117, 0.0342, 0.4},
                           Line{64, 0.117, 0.0323, 0.333}, Line{128, 0.0304, 8.2e-3, 0.286}}) {
    INFO(line.n);
    const auto gap = [&](const char* parameters) {
      return 1 - OfPeriod(MakeGraph(parameters, line.n));
    };
    CHECK(gap("graph=torus") == Approx(line.torus).epsilon(0.005));
    CHECK(gap("graph=grid") == Approx(line.grid).epsilon(0.005));
    CHECK(gap("graph=symmetric_exponential") == Approx(line.exponential).epsilon(0.005));
  }
}

TEST_CASE("dynamic graphs contract per period as in the table", "[gossip]") {
  struct Line {
    const char* parameters;
    int n;
    double left;
  };
  for (const Line& line :
       {Line{"one_peer_exponential", 5, 0.202}, Line{"one_peer_exponential", 9, 0.117},
        Line{"one_peer_exponential", 12, 0.209}, Line{"one_peer_exponential", 33, 0.031},
        Line{"one_peer_hypercube", 5, 0.61}, Line{"one_peer_hypercube", 6, 0.5},
        Line{"one_peer_hypercube", 9, 0.66}, Line{"one_peer_hypercube", 33, 0.70},
        Line{"bipartite_exponential", 6, 0.25}, Line{"bipartite_exponential", 10, 0.20},
        Line{"bipartite_exponential", 24, 0.209}, Line{"bipartite_exponential", 100, 0.192},
        Line{"directed_bipartite_exponential", 4, 0.5},
        Line{"directed_bipartite_exponential", 8, 0.25},
        Line{"directed_bipartite_exponential", 10, 0.063},
        Line{"directed_bipartite_exponential", 48, 0.036}, Line{"ring_alternating", 8, 0.71},
        Line{"ring_alternating", 32, 0.98}}) {
    INFO(line.parameters << " of " << line.n);
    CHECK(OfPeriod(MakeGraph(std::string("graph=") + line.parameters, line.n)) ==
          Approx(line.left).epsilon(0.02));
  }
  CHECK(MakeGraph("graph=directed_bipartite_exponential", 96).period() == 14);
  CHECK(Contraction(MakeGraph("graph=shift_one", 16), 0, 4) == Approx(0.79).epsilon(0.01));
}

// Where all hear of the ranks so many before them, the exponentials exp(2 pi i f v / n) are the
// eigenvectors of every round, and orthogonal: the largest product of a period's eigenvalues is
// what it leaves.
double OfSpectrum(const std::vector<std::set<int>>& offsets, int n) {
  double most = 0;
  for (int f = 1; f < n; ++f) {
    std::complex<double> product = 1;
    for (const std::set<int>& heard : offsets) {
      std::complex<double> sum = 1;
      for (const int offset : heard) sum += std::polar(1.0, 2 * std::numbers::pi * f * offset / n);
      product *= sum / (static_cast<double>(heard.size()) + 1);
    }
    most = std::max(most, std::abs(product));
  }
  return most;
}

// The rounds of one peer each, by how far it is: without those that are the same rank, or oneself.
std::vector<std::set<int>> OnePeer(const std::vector<int>& offsets, int n) {
  std::vector<std::set<int>> rounds;
  std::set<int> known = {0};
  for (const int offset : offsets) {
    const int from = (offset % n + n) % n;
    if (known.insert(from).second) rounds.push_back({from});
  }
  return rounds;
}

std::vector<std::set<int>> SeveralPeers(int peers, int n) {
  std::vector<std::set<int>> rounds;
  for (int power = 1; power < n; power *= peers + 1) {
    rounds.emplace_back();
    for (int j = 1; j <= peers; ++j) rounds.back().insert(j * power % n);
    rounds.back().erase(0);
  }
  return rounds;
}

TEST_CASE("graphs of several peers contract as their spectrum says", "[gossip]") {  // T4
  for (int k = 1; k <= 4; ++k) {
    for (int n = k + 1; n <= kSizes; ++n) {
      const double left = OfPeriod(MakeGraph("graph=m_peer_exponential,k=" + std::to_string(k), n));
      INFO(k << " peers, n = " << n << ", " << left << " is left");
      REQUIRE(left == Approx(OfSpectrum(SeveralPeers(k, n), n)).margin(1e-9));
      if (k == 2 && n > 4) REQUIRE(left < 0.22);
    }
  }
}

TEST_CASE("directed graphs of one peer contract as their spectrum says", "[gossip]") {  // T4
  for (int n = 2; n <= kSizes; ++n) {
    std::vector<int> exponential, odd_exponential = {1, -1}, odd, crossing;
    for (int power = 1; power < n; power *= 2) {
      exponential.insert(exponential.end(), {power, -power});
      if (power > 1) odd_exponential.insert(odd_exponential.end(), {1 + power, -1 - power});
    }
    for (int far = 1; far < n; far += 2) {
      odd.insert(odd.end(), {far, -far});
      crossing.push_back(far);
    }
    struct Line {
      const char* graph;
      const std::vector<int>& offsets;
      Sizes sizes;
    };
    for (const Line& line : {Line{"directed_exponential", exponential, Sizes::kAll},
                             Line{"directed_linear", odd, Sizes::kAll},
                             Line{"directed_bipartite_exponential", odd_exponential, Sizes::kEven},
                             Line{"directed_bipartite_linear", crossing, Sizes::kEven}}) {
      if (!Allowed(line.sizes, n)) continue;
      INFO(line.graph << " of " << n);
      REQUIRE(OfPeriod(MakeGraph(std::string("graph=") + line.graph, n)) ==
              Approx(OfSpectrum(OnePeer(line.offsets, n), n)).margin(1e-9));
    }
  }
}

TEST_CASE("finite-time graphs are exact after a period", "[gossip]") {  // T3
  for (const int n : {1, 2, 4, 8, 16, 32, 64, 128}) {
    for (const char* graph : {"one_peer_exponential", "one_peer_hypercube", "bipartite_exponential",
                              "directed_exponential", "one_peer_exponential,rotate=1"}) {
      INFO(graph << " of " << n);
      const Graph made = MakeGraph(std::string("graph=") + graph, n);
      CHECK(Contraction(made, 0, made.period() > 0 ? made.period() : LogOf(n)) < 1e-13);
    }
  }
  for (int k = 2; k <= 4; ++k) {
    for (int n = k + 1; n <= kSizes; n *= k + 1) {
      INFO("n=" << n << " k=" << k);
      CHECK(OfPeriod(MakeGraph("graph=m_peer_exponential,k=" + std::to_string(k), n)) < 1e-13);
    }
  }
  CHECK(OfPeriod(MakeGraph("graph=ring_alternating", 4)) < 1e-13);
}

TEST_CASE("rotated graphs are exact after each of their periods", "[gossip]") {  // T3
  for (const char* graph :
       {"graph=one_peer_exponential,rotate=1", "graph=one_peer_hypercube,rotate=1"}) {
    for (const int n : {2, 4, 8, 16, 32, 64}) {
      const Graph made = MakeGraph(graph, n);
      for (int64_t e = 0; e < 6; ++e) {
        INFO(graph << " of " << n << ", period " << e);
        CHECK(Contraction(made, e * LogOf(n), LogOf(n)) < 1e-13);
      }
      // Not so from the middle of one to the middle of the next: they are in different orders.
      if (n == 64) CHECK(Contraction(made, LogOf(n) / 2, LogOf(n)) > 0.1);
    }
  }
}

TEST_CASE("every periodic topology brings all nearer in each period", "[gossip]") {  // T4
  for (const Claim& claim : kCatalogue) {
    for (int n = 2; n <= kSizes; n += n < 34 ? 1 : 16) {
      if (!Allowed(claim.sizes, n)) continue;
      const Graph graph = MakeGraph(claim.parameters, n);
      INFO(claim.parameters << " of " << n);
      if (graph.period() > 0) REQUIRE(OfPeriod(graph) < 1 - 1e-4);
    }
  }
}

TEST_CASE("inner-outer graphs bring all nearer, whatever the sizes of hosts", "[gossip]") {  // T4
  for (const char* name : {"inner_outer_ring", "inner_outer_exponential"}) {
    for (int local = 1; local <= 9; ++local) {
      for (int hosts = 1; hosts <= 9; ++hosts) {
        if (local == 2) continue;  // refused
        const std::string spec =
            std::string("graph=") + name + ",local=" + std::to_string(local);
        INFO(spec << " of " << hosts << " hosts");
        if (local * hosts > 1) REQUIRE(OfPeriod(MakeGraph(spec, local * hosts)) < 1 - 1e-4);
      }
    }
  }
}

TEST_CASE("one peer a round: what is left of a period is bounded for every size",
          "[gossip]") {  // T4
  for (int n = 2; n <= kSizes; ++n) {
    INFO(n);
    const double dissemination = OfPeriod(MakeGraph("graph=one_peer_exponential", n));
    const double cube = OfPeriod(MakeGraph("graph=one_peer_hypercube", n));
    if (n == 3) {
      CHECK(dissemination <= 0.25 + 1e-12);
    } else {
      CHECK(dissemination <= 0.22);
    }
    const bool power = (n & (n - 1)) == 0;
    if (power) CHECK((dissemination < 1e-13 && cube < 1e-13));
    if (!power) CHECK(dissemination < cube);
    if (n % 2 == 0)
      CHECK(OfPeriod(MakeGraph("graph=bipartite_exponential", n)) <= 0.25 + 1e-12);
  }
}

// A matching is a projection: of the squared distance it leaves what its mean matrix does, which is
// (n-2) / (2(n-1)), where one sits out 1/2.
TEST_CASE("random matchings leave as much in the mean as all matchings do", "[gossip]") {  // T4
  constexpr int64_t kRounds = 8000;
  for (const int n : {4, 7, 16}) {
    const Graph graph = MakeGraph("graph=random_matching", n);
    double before = 0, after = 0;
    for (int64_t t = 0; t < kRounds; ++t) {
      const Round round = graph.At(t);
      for (int i = 0; i < n; ++i) {  // of the values 0 .. n-1
        const double mean = (n - 1) / 2.0;
        double value = round.self[static_cast<size_t>(i)] * i;
        for (const Neighbor& from : round.from[static_cast<size_t>(i)])
          value += from.weight * from.rank;
        before += (i - mean) * (i - mean);
        after += (value - mean) * (value - mean);
      }
    }
    INFO(n);
    CHECK(after / before == Approx(n % 2 == 0 ? (n - 2) / (2.0 * (n - 1)) : 0.5).epsilon(0.05));
  }
}

TEST_CASE("base graphs are exact for every size, and as short as they are known to be",
          "[gossip]") {
  for (int n = 1; n <= kSizes; ++n) {
    for (int k = 1; k <= (n <= 60 ? 6 : 4); ++k) {
      INFO("n=" << n << " k=" << k);
      REQUIRE(OfPeriod(MakeGraph("graph=base,k=" + std::to_string(k), n)) < 1e-12);
    }
  }
  struct Line {
    int n;
    int64_t length[4];
  };
  for (const Line& line :
       {Line{5, {5, 3, 3, 1}}, Line{6, {4, 2, 2, 2}}, Line{7, {5, 4, 3, 3}}, Line{9, {7, 2, 2, 2}},
        Line{10, {6, 4, 4, 2}}, Line{12, {5, 3, 2, 2}}, Line{24, {6, 4, 3, 3}},
        Line{25, {9, 6, 5, 2}}, Line{48, {7, 5, 3, 3}}, Line{100, {11, 8, 6, 3}},
        Line{127, {13, 9, 7, 7}}, Line{200, {12, 9, 7, 4}}, Line{1000, {16, 12, 9, 5}},
        Line{1023, {19, 12, 10, 9}}}) {
    for (int k = 1; k <= 4; ++k) {
      INFO("n=" << line.n << " k=" << k);
      CHECK(MakeGraph("graph=base,k=" + std::to_string(k), line.n).period() == line.length[k - 1]);
    }
  }
}

TEST_CASE("fewest rounds for a tolerance", "[gossip]") {
  CHECK(RoundsFor(MakeGraph("graph=ring", 16), 0, 1e-3, 1000) == 133);
  CHECK(RoundsFor(MakeGraph("graph=torus", 32), 0, 1e-3, 1000) == 56);
  CHECK(RoundsFor(MakeGraph("graph=star", 8), 0, 1e-3, 1000) == 52);
  CHECK(RoundsFor(MakeGraph("graph=one_peer_exponential", 32), 3, 1e-9, 1000) == 5);
  CHECK(RoundsFor(MakeGraph("graph=ring", 32), 0, 1e-3, 100) == -1);
  CHECK(RoundsFor(MakeGraph("graph=ring", 1), 0, 0, 0) == 0);
}

TEST_CASE("push-sum finds the mean where the plain values do not", "[gossip]") {
  const Graph star = MakeGraph("graph=star,mixing=push", 6);
  CHECK(Contraction(star, 0, 200) < 1e-9);
  const Matrix product = Product(star, 0, 200);
  double total = 0;
  for (const double x : product) total += x;
  CHECK(total == Approx(6));                     // the sum is kept
  CHECK(std::fabs(product[0] - 1.0 / 6) > 0.1);  // the plain value is off
}

}  // namespace
}  // namespace horon::gossip
