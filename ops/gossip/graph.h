// Graphs of gossip: who mixes with whom in a round, and with which weights.
//
// A round is a sparse mixing matrix W: row i says of what participant i's new value is made.
// Everything here is a pure function of the number of participants, the round and the parameters,
// so every rank works out alone what all others do. Used by the gossip ops on the holder of the
// baton, and by the C API and at submit on user threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace horon::gossip {

struct Neighbor {
  int rank = 0;
  double weight = 0;
  bool operator==(const Neighbor&) const = default;
};
using Neighbors = std::vector<Neighbor>;  // ascending ranks, nobody twice

struct Round {
  std::vector<double> self;     // W[i][i]
  std::vector<Neighbors> from;  // by receiver i: the j != i that it hears, with W[i][j]
  int size() const { return static_cast<int>(self.size()); }
  bool operator==(const Round&) const = default;
};

// By receiver: whom it hears. Ascending, without itself, nobody twice.
using Links = std::vector<std::vector<int>>;

// Sorts, and drops repeats and receivers themselves.
Links Tidy(Links links);
// Every participant sends to those `offsets` further on, modulo `size`.
Links Circulant(int size, const std::vector<int>& offsets);
Links LinksOf(const Round& round);
bool Symmetric(const Links& links);

// How weights follow from links.
enum class Weights {
  kNatural,     // the topology's own: Metropolis if its links are symmetric, else uniform
  kUniform,     // 1 / (neighbors heard + 1): rows sum to 1
  kPush,        // 1 / (neighbors sent to + 1): columns sum to 1
  kMetropolis,  // 1 / (1 + the larger degree of the two): symmetric. Symmetric links only
};
Round Weigh(const Links& links, Weights weights);
// (I + W) / 2: no eigenvalue near -1.
Round Lazy(Round round);

// What one participant does in a round. The weights in `to` are those its receivers take.
struct Row {
  double self = 1;
  Neighbors from, to;
  size_t most_heard = 0;  // by any participant
};
Row RowOf(const Round& round, int participant);

// How far a sum of weights may be from 1.
inline constexpr double kSumTolerance = 1e-9;
// Which sums of the matrix are 1. Both: the mean is kept, and all approach it. Columns alone: the
// sum is kept, and push-sum finds the mean. Rows alone: all approach a weighted mean.
struct Stochastic {
  bool rows = true, columns = true;
};
Stochastic StochasticOf(const Round& round);

// A round for every t >= 0. Cheap to copy.
class Graph {
 public:
  using Maker = std::function<Round(int64_t round)>;
  // `period`: rounds until it repeats; 0: never.
  Graph(int size, int64_t period, Maker make)
      : size_(size), period_(period), make_(std::move(make)) {}
  int size() const { return size_; }
  int64_t period() const { return period_; }
  Round At(int64_t round) const { return make_(period_ > 0 ? round % period_ : round); }

 private:
  int size_;
  int64_t period_;
  Maker make_;
};

// Whether news of every participant reaches every other over one period. Of graphs that have one.
bool Connected(const Graph& graph);

}  // namespace horon::gossip
