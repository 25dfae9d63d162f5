// The C API's view of gossip graphs: the same objects that the gossip ops mix on.
#include "ops/gossip/contraction.h"
#include "ops/gossip/spec.h"
#include "runtime/c_error.h"
#include "runtime/include/horon/horon.h"

struct horon_graph {
  horon::gossip::Graph graph;
};

using namespace horon;  // NOLINT: what follows is C's

namespace {

// The op's own parameters beside the graph's are its business.
void SkipOwnParameters(OpArguments& arguments) {
  for (const char* key : {"hierarchical", "inside"}) arguments.Text(key);
}

}  // namespace

extern "C" {

int horon_graph_make(const char* spec, int size, horon_graph** graph) {
  return Guard([&]() -> Status {
    if (spec == nullptr || size < 1)
      return Status::InvalidArgument("a graph needs a spec and at least one participant");
    HORON_ASSIGN(OpArguments arguments, OpArguments::Parse(spec));
    HORON_ASSIGN(const gossip::GraphSpec parsed, gossip::GraphSpec::Read(arguments));
    SkipOwnParameters(arguments);
    HORON_TRY(arguments.Finish());
    auto made = parsed.Make(size);
    if (!made.ok()) return arguments.Wrong(made.status().message());
    *graph = new horon_graph{std::move(made).value()};
    return Status::Ok();
  });
}

void horon_graph_release(horon_graph* graph) { delete graph; }

int64_t horon_graph_period(const horon_graph* graph) { return graph->graph.period(); }

void horon_graph_round(const horon_graph* graph, int64_t round,
                       void (*visit)(int to, int from, double weight, void* user), void* user) {
  const gossip::Round made = graph->graph.At(round);
  for (int to = 0; to < made.size(); ++to) {
    visit(to, to, made.self[static_cast<size_t>(to)], user);
    for (const gossip::Neighbor& from : made.from[static_cast<size_t>(to)])
      visit(to, from.rank, from.weight, user);
  }
}

double horon_graph_contraction(const horon_graph* graph, int64_t first, int64_t rounds) {
  return gossip::Contraction(graph->graph, first, rounds);
}

int64_t horon_graph_rounds_for(const horon_graph* graph, int64_t first, double tolerance,
                               int64_t most) {
  return gossip::RoundsFor(graph->graph, first, tolerance, most);
}

}  // extern "C"
