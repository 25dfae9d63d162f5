// Graphs by their parameters, as tests want them. Pure.
#pragma once

#include <string>
#include <vector>

#include "ops/gossip/spec.h"
#include "test/support/catch.h"

namespace horon::gossip {

inline Result<GraphSpec> ReadSpec(const std::string& parameters) {
  HORON_ASSIGN(OpArguments arguments,
               OpArguments::Parse(parameters.empty() ? "gossip" : "gossip:" + parameters));
  HORON_ASSIGN(GraphSpec spec, GraphSpec::Read(arguments));
  HORON_TRY(arguments.Finish());
  return spec;
}

inline Result<Graph> TryGraph(const std::string& parameters, int size) {
  HORON_ASSIGN(const GraphSpec spec, ReadSpec(parameters));
  return spec.Make(size);
}

inline Graph MakeGraph(const std::string& parameters, int size) {
  auto graph = TryGraph(parameters, size);
  INFO(parameters << " of " << size << ": " << graph.status().message());
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

// Parameters, or none, with another one.
inline std::string With(const std::string& parameters, const std::string& more) {
  return parameters + (parameters.empty() ? "" : ",") + more;
}

// The most participants of the tests that go through all sizes.
inline constexpr int kSizes = 130;

enum class Sizes { kAll, kEven, kPowers, kOfThree, kOfFour };
inline bool Allowed(Sizes sizes, int n) {
  switch (sizes) {
    case Sizes::kEven:
      return n == 1 || n % 2 == 0;
    case Sizes::kPowers:
      return (n & (n - 1)) == 0;
    case Sizes::kOfThree:
      return n % 3 == 0;
    case Sizes::kOfFour:
      return n % 4 == 0;
    default:
      return true;
  }
}

// The catalogue: what each row claims.
struct Claim {
  const char* parameters;
  Sizes sizes;
  bool symmetric;
  int peers;  // at most so many heard a round; 0: as many as there are
};
inline const std::vector<Claim> kCatalogue = {
    {"graph=complete", Sizes::kAll, true, 0},
    {"graph=ring", Sizes::kAll, true, 2},
    {"graph=ring_one_way", Sizes::kAll, false, 1},
    {"graph=ring_alternating", Sizes::kEven, true, 1},
    {"graph=star", Sizes::kAll, true, 0},
    {"graph=grid", Sizes::kAll, true, 4},
    {"graph=torus", Sizes::kAll, true, 4},
    {"graph=static_exponential", Sizes::kAll, false, 8},
    {"graph=symmetric_exponential", Sizes::kAll, true, 14},
    {"graph=symmetric_exponential,b=3", Sizes::kAll, true, 10},
    {"graph=hypercube", Sizes::kPowers, true, 7},
    {"graph=one_peer_exponential", Sizes::kAll, false, 1},
    {"graph=one_peer_exponential,rotate=1", Sizes::kAll, false, 1},
    {"graph=one_peer_hypercube", Sizes::kAll, true, 1},
    {"graph=one_peer_hypercube,rotate=1,seed=7", Sizes::kAll, true, 1},
    {"graph=m_peer_exponential", Sizes::kAll, false, 2},
    {"graph=m_peer_exponential,k=3", Sizes::kAll, false, 3},
    {"graph=directed_exponential", Sizes::kAll, false, 1},
    {"graph=directed_bipartite_exponential", Sizes::kEven, false, 1},
    {"graph=directed_linear", Sizes::kAll, false, 1},
    {"graph=directed_bipartite_linear", Sizes::kEven, false, 1},
    {"graph=bipartite_exponential", Sizes::kEven, true, 1},
    {"graph=base", Sizes::kAll, true, 1},
    {"graph=base,k=2", Sizes::kAll, true, 2},
    {"graph=base,k=3", Sizes::kAll, true, 3},
    {"graph=base,k=4", Sizes::kAll, true, 4},
    {"graph=random_matching", Sizes::kAll, true, 1},
    {"graph=inner_outer_ring,local=1", Sizes::kAll, false, 1},
    {"graph=inner_outer_exponential,local=1", Sizes::kAll, false, 1},
    {"graph=inner_outer_ring,local=3", Sizes::kOfThree, false, 1},
    {"graph=inner_outer_exponential,local=3", Sizes::kOfThree, false, 1},
    {"graph=inner_outer_ring,local=4", Sizes::kOfFour, false, 1},
    {"graph=inner_outer_exponential,local=4", Sizes::kOfFour, false, 1},
    {"graph=shift_one", Sizes::kEven, true, 1},
    {"", Sizes::kAll, false, 1},
};

}  // namespace horon::gossip
