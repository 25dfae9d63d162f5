// "gossip:graph=...": one round of mixing on a graph that all ranks know. The round belongs to the
// tensor: it counts the tensor's calls, unless the request says which one this is. Floating dtypes.
//
// hierarchical=1: the participants are the nodes. Ranks reduce inside the node (inside=average or
// sum), those that own equal parts mix between nodes, and the node gathers. rounds=R: R rounds a
// call, one after the other; between nodes without meeting inside.
//
// late=keep|fail: what becomes of a round that some rank is too late for. Kept, it is left out: the
// matrix of that call is the identity, on all ranks.
//
// Sent per rank and round: S for each peer. Source: Lian et al., Can Decentralized Algorithms
// Outperform Centralized Algorithms, NeurIPS 2017; Assran et al., Stochastic Gradient Push, 2019.
#include <map>
#include <utility>

#include "ops/gossip/gpu_mix.h"
#include "ops/gossip/mix.h"
#include "ops/gossip/spec.h"
#include "ops/hierarchical.h"
#include "ops/rounds.h"

namespace horon {
namespace {

using gossip::Graph;
using gossip::GraphSpec;
using gossip::Row;

constexpr int64_t kMostRounds = 1'000'000;

class Gossip final : public Op {
 public:
  Gossip(GraphSpec spec, bool hierarchical, bool average, int64_t rounds)
      : spec_(std::move(spec)), hierarchical_(hierarchical), average_(average), rounds_(rounds) {}

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
  bool fills_output() const override { return true; }
  int64_t MostFused(int64_t threshold, DeviceKind where) const override {
    return gossip::MostFused(threshold, where);
  }
  std::vector<WhenLate> late_choices() const override {
    return {WhenLate::kKeep, WhenLate::kFail};
  }

  bool TakesLane(Stage& stage) const override {
    return !hierarchical_ && gossip::MixesOverLane(stage);
  }

  Task Run(Stage& stage) override {
    HORON_CO_TRY(PrepareOutputs(stage));
    const std::vector<int64_t> rounds = TakeRounds(stage, rounds_);
    const Participant me = ParticipantOf(stage.comm());
    const Result<Graph*> graph = GraphOf(me.of);
    if (!graph.ok()) co_return Refused(*stage.segments()[0].request, graph.status());
    const ByRound by_round = ByRounds(rounds, *graph.value());
    if (hierarchical_) co_return co_await BetweenNodes(stage, by_round, *graph.value(), me.place);
    co_return co_await BetweenRanks(stage, by_round, *graph.value(), me.place);
  }

  bool on_gpus(Stage& stage, bool everyone) const override {
    return gossip::MixesOnGpus(stage.comm(), hierarchical_, everyone);
  }

  Task RunOnGpus(GpuStage& stage) override {
    const std::vector<int64_t> rounds = TakeRounds(stage, rounds_);
    const Participant me = ParticipantOf(stage.comm());
    const Result<Graph*> graph = GraphOf(me.of);
    if (!graph.ok()) co_return Refused(*stage.segments()[0].request, graph.status());
    std::vector<gossip::GpuRounds> mixes;
    for (auto& [round, which] : ByRounds(rounds, *graph.value()))
      mixes.push_back({RowsOf(*graph.value(), round, me.place), which});
    stage.SetAlgorithm("mixing on GPUs");
    Task mix = hierarchical_ ? gossip::MixNodesOnGpus(stage, std::move(mixes), average_)
                             : gossip::MixOnGpus(stage, std::move(mixes),
                                                 stage.prescale() * stage.postscale());
    co_return co_await mix;
  }

  void Skip(Stage& stage) override { TakeRounds(stage, rounds_); }

 private:
  using ByRound = std::map<int64_t, std::vector<size_t>>;
  struct Participant {
    int place, of;
  };

  Participant ParticipantOf(const Communicator& comm) const {
    if (!hierarchical_) return {comm.rank(), comm.size()};
    return {comm.node_of(comm.rank()), static_cast<int>(comm.nodes().size())};
  }

  static ByRound ByRounds(const std::vector<int64_t>& rounds, const Graph& graph) {
    const int64_t period = graph.period();
    ByRound by_round;
    for (size_t i = 0; i < rounds.size(); ++i)
      by_round[period > 0 ? rounds[i] % period : rounds[i]].push_back(i);
    return by_round;
  }

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
    const auto key = std::make_pair(std::make_pair(graph.size(), me), round % graph.period());
    const auto known = rows_.find(key);
    if (known != rows_.end()) return known->second;
    return rows_.emplace(key, gossip::RowOf(graph.At(round), me)).first->second;
  }

  // The rows of a call that begins with that round; without rounds all keep what they have.
  std::vector<Row> RowsOf(const Graph& graph, int64_t first, int me) {
    std::vector<Row> rows;
    for (int64_t round = first; round < first + rounds_; ++round)
      rows.push_back(RowOf(graph, round, me));
    if (rows.empty()) rows.emplace_back();
    return rows;
  }

  Task BetweenRanks(Stage& stage, ByRound by_round, const Graph& graph, int me) {
    std::map<size_t, std::vector<Row>> rows;  // by segment: all ranks go through it in its order
    for (const auto& [round, which] : by_round) {
      for (const size_t i : which) rows[i] = RowsOf(graph, round, me);
    }
    gossip::Mixing mixing{stage.dtype(), stage.prescale() * stage.postscale()};
    for (size_t turn = 0; turn < rows.begin()->second.size(); ++turn) {
      std::vector<gossip::Part> parts;
      for (auto& [i, turns] : rows) {
        const Segment& segment = stage.segments()[i];
        parts.push_back({std::move(turns[turn]), turn == 0 ? segment.input : segment.output,
                         segment.output, segment.count});
      }
      HORON_CO_TRY(co_await gossip::MixBucket(stage, std::move(parts), mixing));
      mixing.factor = 1;
    }
    co_return Status::Ok();
  }

  Task BetweenNodes(Stage& stage, ByRound by_round, const Graph& graph, int me) {
    for (const auto& [round, which] : by_round) {
      const std::vector<Row> rows = RowsOf(graph, round, me);
      NodeStep between = [&stage, rows](Communicator& across, std::byte* part, int64_t count) {
        return gossip::MixPart(stage, across, rows, part, count);
      };
      HORON_CO_TRY(co_await OverNodes(stage, which, average_, between));
    }
    co_return Status::Ok();
  }

  GraphSpec spec_;
  bool hierarchical_, average_;
  int64_t rounds_;
  std::map<int, Graph> graphs_;  // by participants: process sets differ
  std::map<std::pair<std::pair<int, int>, int64_t>, Row> rows_;  // by participants, me, round
};

Result<std::unique_ptr<Op>> MakeGossip(OpArguments& arguments) {
  HORON_ASSIGN(GraphSpec spec, GraphSpec::Read(arguments));
  HORON_ASSIGN(const bool hierarchical, gossip::ReadFlag(arguments, "hierarchical"));
  HORON_ASSIGN(const std::string inside, arguments.Choice("inside", {"average", "sum"}));
  HORON_ASSIGN(const int64_t rounds, arguments.Integer("rounds", 1));
  if (rounds < 0 || rounds > kMostRounds)
    return arguments.Wrong("rounds must be from 0 to " + std::to_string(kMostRounds));
  return std::unique_ptr<Op>(
      std::make_unique<Gossip>(std::move(spec), hierarchical, inside == "average", rounds));
}

const OpRegistrar kGossip{"gossip", MakeGossip};

}  // namespace
}  // namespace horon
