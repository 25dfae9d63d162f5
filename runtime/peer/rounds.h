// Rounds: how a window mixes where ranks agree on whom they meet in which round, but wait for
// nobody else: the graph as one rank sees it, and where its rounds begin. Made by c_rounds.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace horon {

// What one rank does in a round: ascending ranks, with the weights that the receiver gives.
struct RoundRow {
  double self = 1;
  std::vector<std::pair<int, double>> from, to;
};

struct Rounds {
  std::string graph;  // as all ranks must name it
  int64_t first = 0;
  // Weights travel, and what could not be given stays here: the sum over the ranks is kept. False:
  // the weight of who was not heard goes to the rank itself, so that rows go on to sum to 1.
  bool push_sum = false;
  std::function<RoundRow(int64_t round)> row;  // holder of the baton

  // What must be equal on all ranks, for their error.
  std::string Describe() const {
    return "by " + graph + (push_sum ? " with push-sum" : "") + " from round " +
           std::to_string(first);
  }
};

}  // namespace horon
