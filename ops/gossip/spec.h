// GraphSpec: a graph as an op's parameters name it, before the number of participants is known.
//
//   graph=ring,mixing=uniform,lazy=1        a topology of the catalogue
//   graph=custom,n=3,edges=0>1;1>2;2>0      one of the user's own
//   (nothing)                               graph=auto
//
// Equal parameters on all ranks are their agreement on the graph. Parsed once per spec; any thread.
#pragma once

#include "ops/gossip/topologies.h"
#include "runtime/op/op.h"

namespace horon::gossip {

struct GraphSpec {
  std::string name = "auto";
  Parameters parameters;
  int64_t size = 0;  // participants that it was made for; 0: any number
  Weights weights = Weights::kNatural;
  bool lazy = false;
  std::vector<Round> custom;  // the rounds of the user's own graph
  bool weighted = false;      // whether those brought their weights
  // Graph parameters that its topology has not got stay unread, for OpArguments::Finish to refuse.
  static Result<GraphSpec> Read(OpArguments& arguments);
  // kInvalidArgument: the topology cannot have so many participants, or not these weights.
  Result<Graph> Make(int size) const;
};

// Rounds separated by '/', edges in them by ';'. An edge is from>to or from>to*weight; i>i*weight
// is a weight of one's own. All edges have weights, or none.
struct CustomRounds {
  std::vector<Round> rounds;
  bool weighted = false;
};
Result<CustomRounds> ReadEdges(const std::string& text, int size);

// A parameter that is 0 (also where it is left out) or 1.
Result<bool> ReadFlag(OpArguments& arguments, const std::string& key);

}  // namespace horon::gossip
