// The catalogue of topologies by name: what MakeGraph (spec.h) chooses from.
//
// A topology gives the links of each round; weights follow from them, unless its rounds bring
// weights of their own. Pure; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/gossip/graph.h"

namespace horon::gossip {

// Whole numbers by name, complete: those not given have their defaults.
using Parameters = std::map<std::string, int64_t>;

struct Schedule {
  int64_t period = 1;  // 0: never repeats
  std::function<Links(int64_t round)> links;
  Graph::Maker rounds;  // instead of links
};

struct Parameter {
  const char* name;
  std::optional<int64_t> fallback;  // none: it must be given
  int64_t least;
};

struct Family {
  const char* name;
  std::vector<Parameter> parameters;
  // kInvalidArgument with what is wrong with this size or these parameters; size >= 1.
  Result<Schedule> (*make)(int size, const Parameters& parameters);
};
const std::vector<Family>& Topologies();

// Smallest K with 2^K >= size.
int LogOf(int size);
// Base-(k+1): exact averages for any size with at most k peers a round (base.cc).
Result<Schedule> MakeBase(int size, const Parameters& parameters);
// Participants 0..size-1 in an order that depends on the key alone, the same on all machines.
std::vector<int> Shuffled(int size, uint64_t seed, uint64_t key);

// The tables in topologies_static.cc and topologies_dynamic.cc.
std::vector<Family> StaticTopologies();
std::vector<Family> DynamicTopologies();

}  // namespace horon::gossip
