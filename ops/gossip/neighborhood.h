// Neighborhood: whom one rank hears and whom it sends to in one call, as the call's own arguments
// say it, and whether the ranks' views of that agree.
//
// In a request: splits = {me, number of sources, sources..., destinations...} and weights =
// {self, of the sources..., of the destinations...}, or none where nothing is mixed. Participants
// are ranks of the process set, or its nodes. Checked on the coordinator; read again in Run.
#pragma once

#include "ops/gossip/graph.h"
#include "runtime/op/op.h"

namespace horon::gossip {

struct Neighborhood {
  int me = 0;
  double self = 1;
  std::vector<Neighbor> sources, destinations;  // in the caller's order
};

// The request passed CheckNeighborhoods.
Neighborhood NeighborhoodOf(const Request& request);

enum class Between { kRanks, kNodes };

// Every source sends, every destination hears; lists are sound; ranks of one node say the same.
// The sentences show both views.
Status CheckNeighborhoods(std::span<const Request* const> by_rank, std::span<const int> ranks,
                          Between between, bool weighted);

// Who hears whom with which weight (the receiver's times the sender's), as an Agreement carries it
// to ranks that cannot read what comes to them: by participant the number of its sources, its own
// weight, and of each source its number and the weight; doubles as their bits. After
// CheckNeighborhoods.
std::vector<int64_t> Told(std::span<const Request* const> by_rank);
// One participant's row of it: sources and destinations ascending.
Row RowOf(const std::vector<int64_t>& told, int participant);

// Whether the weights sum to 1 over what everybody hears (`rows`) or sends (`columns`): "any",
// "rows", "columns" or "both". After CheckNeighborhoods.
Status CheckSums(std::span<const Request* const> by_rank, const std::string& claimed);

}  // namespace horon::gossip
