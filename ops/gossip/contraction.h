// How fast gossip on a graph brings the participants together. Dense arithmetic on n x n numbers:
// for questions before training, not for its steps. Pure; any thread.
#pragma once

#include "ops/gossip/graph.h"

namespace horon::gossip {

// n x n, row by row.
using Matrix = std::vector<double>;

// Every participant's value after rounds first .. first + rounds - 1, in terms of all values
// before: W(last) ... W(first).
Matrix Product(const Graph& graph, int64_t first, int64_t rounds);

// The most that `rounds` rounds leave of the participants' disagreement: the 2-norm of their
// product less the exact average. Rows that do not sum to 1 are divided by their sums, as push-sum
// does it.
double Contraction(const Graph& graph, int64_t first, int64_t rounds);

// The fewest rounds from `first` on that leave at most `tolerance` of the disagreement;
// -1: not within `most` rounds.
int64_t RoundsFor(const Graph& graph, int64_t first, double tolerance, int64_t most);

// The largest singular value of an n x n matrix.
double LargestSingularValue(const Matrix& matrix, int size);

}  // namespace horon::gossip
