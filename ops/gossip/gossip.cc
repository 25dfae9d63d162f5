// "gossip:graph=...": one round of mixing on a graph that all ranks know. The round belongs to the
// tensor: it counts the tensor's calls, unless the request says which one this is. Floating dtypes.
//
// hierarchical=1: the participants are the nodes. Ranks reduce inside the node (inside=average or
// sum), those that own equal parts mix between nodes, and the node gathers.
//
// Sent per rank and round: S for each peer. Source: Lian et al., Can Decentralized Algorithms
// Outperform Centralized Algorithms, NeurIPS 2017; Assran et al., Stochastic Gradient Push, 2019.
#include <map>
#include <utility>

#include "ops/gossip/mix.h"
#include "ops/gossip/spec.h"
#include "ops/hierarchical.h"
#include "ops/rounds.h"

namespace horon {
namespace {

using gossip::Graph;
using gossip::GraphSpec;
using gossip::Row;

class Gossip final : public Op {
 public:
  Gossip(GraphSpec spec, bool hierarchical, bool average)
      : spec_(std::move(spec)), hierarchical_(hierarchical), average_(average) {}

  Status CheckAlone(const Request& request) const override { return CheckFloating(request); }

  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckFloatingAlike(by_rank, ranks));
    if (by_rank[0]->round < -1)
      return Status::InvalidArgument("gossip of tensor '" + by_rank[0]->name +
                                     "': there is no round " + std::to_string(by_rank[0]->round));
    if (hierarchical_) return Agreement{};  // Run knows how many nodes there are
    const auto graph = spec_.Make(static_cast<int>(by_rank.size()));
    if (!graph.ok()) return Refused(*by_rank[0], graph.status());
    return Agreement{};
  }

  bool fusable() const override { return true; }

  bool TakesLane(Stage& stage) const override {
    return !hierarchical_ && gossip::MixesOverLane(stage);
  }

  Task Run(Stage& stage) override {
    HORON_CO_TRY(PrepareOutputs(stage));
    const std::vector<int64_t> rounds = TakeRounds(stage);
    const Communicator& comm = stage.comm();
    const int participants = hierarchical_ ? static_cast<int>(comm.nodes().size()) : comm.size();
    const int me = hierarchical_ ? comm.node_of(comm.rank()) : comm.rank();
    const Result<Graph*> graph = GraphOf(participants);
    if (!graph.ok()) co_return Refused(*stage.segments()[0].request, graph.status());
    const int64_t period = graph.value()->period();
    ByRound by_round;
    for (size_t i = 0; i < rounds.size(); ++i)
      by_round[period > 0 ? rounds[i] % period : rounds[i]].push_back(i);
    if (hierarchical_) co_return co_await BetweenNodes(stage, by_round, *graph.value(), me);
    co_return co_await BetweenRanks(stage, by_round, *graph.value(), me);
  }

  void Skip(Stage& stage) override { TakeRounds(stage); }

 private:
  using ByRound = std::map<int64_t, std::vector<size_t>>;

  static Status Refused(const Request& request, const Status& why) {
    return Status::InvalidArgument("gossip of tensor '" + request.name + "': " + why.message());
  }

  Result<Graph*> GraphOf(int participants) {
    const auto known = graphs_.find(participants);
    if (known != graphs_.end()) return &known->second;
    HORON_ASSIGN(Graph made, spec_.Make(participants));
    return &graphs_.emplace(participants, std::move(made)).first->second;
  }

  // Remembered where rounds come again.
  Row RowOf(const Graph& graph, int64_t round, int me) {
    if (graph.period() == 0) return gossip::RowOf(graph.At(round), me);
    const auto key = std::make_pair(std::make_pair(graph.size(), me), round);
    const auto known = rows_.find(key);
    if (known != rows_.end()) return known->second;
    return rows_.emplace(key, gossip::RowOf(graph.At(round), me)).first->second;
  }

  Task BetweenRanks(Stage& stage, ByRound by_round, const Graph& graph, int me) {
    std::map<size_t, Row> rows;  // by segment: all ranks go through the bucket in its order
    for (const auto& [round, which] : by_round) {
      for (const size_t i : which) rows[i] = RowOf(graph, round, me);
    }
    std::vector<gossip::Part> parts;
    for (auto& [i, row] : rows) {
      const Segment& segment = stage.segments()[i];
      parts.push_back({std::move(row), segment.input, segment.output, segment.count});
    }
    const gossip::Mixing mixing{stage.dtype(), stage.prescale() * stage.postscale()};
    co_return co_await gossip::MixBucket(stage, std::move(parts), mixing);
  }

  Task BetweenNodes(Stage& stage, ByRound by_round, const Graph& graph, int me) {
    const DataType dtype = stage.dtype();
    for (const auto& [round, which] : by_round) {
      const Row row = RowOf(graph, round, me);
      NodeStep between = [&stage, dtype, row](Communicator& across, std::byte* part,
                                              int64_t count) {
        std::vector<gossip::Part> parts = {{row, part, part, count}};
        gossip::CountSent(stage, across, parts, dtype);
        return gossip::MixParts(across, std::move(parts), {dtype});
      };
      HORON_CO_TRY(co_await OverNodes(stage, which, ReduceKind::kSum, average_, between));
    }
    co_return Status::Ok();
  }

  GraphSpec spec_;
  bool hierarchical_, average_;
  std::map<int, Graph> graphs_;  // by participants: process sets differ
  std::map<std::pair<std::pair<int, int>, int64_t>, Row> rows_;  // by participants, me, round
};

Result<std::unique_ptr<Op>> MakeGossip(OpArguments& arguments) {
  HORON_ASSIGN(GraphSpec spec, GraphSpec::Read(arguments));
  HORON_ASSIGN(const bool hierarchical, gossip::ReadFlag(arguments, "hierarchical"));
  HORON_ASSIGN(const std::string inside, arguments.Choice("inside", {"average", "sum"}));
  return std::unique_ptr<Op>(
      std::make_unique<Gossip>(std::move(spec), hierarchical, inside == "average"));
}

const OpRegistrar kGossip{"gossip", MakeGossip};

}  // namespace
}  // namespace horon
