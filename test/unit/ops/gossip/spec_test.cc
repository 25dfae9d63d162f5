// What may be wrong with a graph, and the sentences that say so; graphs of the user's own.
#include "test/unit/ops/gossip/graphs.h"

namespace horon::gossip {
namespace {

std::string Refusal(const std::string& parameters, int size = 4) {
  const auto graph = TryGraph(parameters, size);
  return graph.ok() ? "" : graph.status().message();
}

bool Says(const std::string& sentence, const std::string& words) {
  UNSCOPED_INFO("it said: " << sentence);
  return sentence.find(words) != std::string::npos;
}

TEST_CASE("sizes that a topology cannot have", "[gossip]") {
  CHECK(Says(Refusal("graph=hypercube", 6), "a hypercube needs 2^k participants, not 6"));
  for (const char* graph : {"ring_alternating", "bipartite_exponential", "shift_one",
                            "directed_bipartite_exponential", "directed_bipartite_linear"})
    CHECK(Says(Refusal(std::string("graph=") + graph, 5), "even number of participants, not 5"));
  CHECK(Says(Refusal("graph=star,centre=4"), "cannot be 4"));
  CHECK(Says(Refusal("graph=inner_outer_ring,local=3"), "hosts of 3 do not divide 4"));
  for (const char* graph : {"inner_outer_ring", "inner_outer_exponential"})
    CHECK(Says(Refusal(std::string("graph=") + graph + ",local=2"), "hosts of 2 never meet"));
  CHECK(Says(Refusal("graph=ring,n=8"), "is for 8 participants, but there are 4"));
  CHECK(Says(Refusal("graph=hypercube,n=6", 6), "in op 'gossip:graph=hypercube,n=6'"));
}

TEST_CASE("parameters that are wrong, missing or of another topology", "[gossip]") {
  CHECK(Says(Refusal("graph=rong"),
             "there is no graph 'rong' (did you mean 'ring'?); there are: auto, complete, ring"));
  CHECK(Says(Refusal("graph=ring,k=2"), "unknown parameter 'k'"));
  CHECK(Says(Refusal("graph=base,k=0"), "k must be from 1"));
  CHECK(Says(Refusal("graph=inner_outer_ring"), "parameter 'local' is missing"));
  CHECK(Says(Refusal("graph=ring,mixing=even"), "mixing=even is none of"));
  CHECK(Says(Refusal("graph=ring,lazy=2"), "lazy must be 0 or 1"));
  CHECK(Says(Refusal("graph=ring_one_way,mixing=metropolis"), "use uniform or push"));
  CHECK(Says(Refusal("graph=ring,n=-1"), "n must be"));
}

// Specs come from other ranks: none may take the time or the memory of a graph that nobody has.
TEST_CASE("a graph for more participants than there are is not made", "[gossip]") {
  for (const char* graph : {"complete", "directed_linear", "star", "inner_outer_ring,local=1024"})
    CHECK(Says(Refusal(std::string("n=1048576,graph=") + graph), "is for 1048576 participants"));
  CHECK(Says(Refusal("graph=custom,n=1048576,edges=0>1/1>0"), "must be at most 1048576"));
  CHECK(Says(Refusal("graph=custom,n=1048576,edges=0>1*0.5;1>0*2"), "sum to 1 for everybody"));
  CHECK(MakeGraph("graph=m_peer_exponential,k=1048576,n=200", 200).At(0) ==
        MakeGraph("graph=complete", 200).At(0));
}

TEST_CASE("auto takes an exact graph", "[gossip]") {
  CHECK(MakeGraph("", 8).At(1) == MakeGraph("graph=one_peer_exponential", 8).At(1));
  CHECK(MakeGraph("graph=auto", 12).At(3) == MakeGraph("graph=base,k=1", 12).At(3));
  CHECK(MakeGraph("", 129).period() == 8);
}

TEST_CASE("a user's graph: links alone, or with weights, over several rounds", "[gossip]") {
  const Graph links = MakeGraph("graph=custom,n=3,edges=0>1;1>0/1>2;2>1", 3);
  CHECK(links.period() == 2);
  CHECK(links.At(0).from[1] == Neighbors{{0, 0.5}});
  CHECK(links.At(3).from[1] == Neighbors{{2, 0.5}});
  const Graph weighted = MakeGraph("graph=custom,n=2,edges=0>0*0.25;1>0*0.75;0>1*0.5;1>1*0.5", 2);
  CHECK(weighted.At(0).self == std::vector<double>{0.25, 0.5});
  CHECK(weighted.At(0).from[0] == Neighbors{{1, 0.75}});
  const Graph pause = MakeGraph("graph=custom,n=2,edges=0>1;1>0/", 2);
  CHECK(pause.At(1).self == std::vector<double>{1, 1});
  const Graph push = MakeGraph("graph=custom,n=3,edges=0>1;1>2;2>0;0>2,mixing=push", 3);
  CHECK(push.At(0).from[2] == Neighbors{{0, 1.0 / 3}, {1, 0.5}});
}

TEST_CASE("a user's graph that is wrong", "[gossip]") {
  const auto custom = [](const std::string& edges) {
    return Refusal("graph=custom,n=3,edges=" + edges, 3);
  };
  CHECK(Says(Refusal("graph=custom,n=3", 3), "a custom graph needs n and edges"));
  CHECK(Says(custom("0>0*3;1>1*3;2>2*1;0>1*-2;1>0*-2"), "'0>1*-2' is negative"));
  CHECK(Says(custom("0>0*1;1>1*1;2>2*1;0>1*0;1>2*0;2>0*0"), "not everybody's value reaches"));
  CHECK(Says(Refusal("graph=custom,edges=0>1", 3), "a custom graph needs n and edges"));
  CHECK(Says(custom("0>1;1-2"), "'1-2' is not from>to or from>to*weight"));
  CHECK(Says(custom("0>1;1>2;2>0;;"), "'' is not from>to"));
  CHECK(Says(custom("0>3"), "'0>3' is not between participants 0 to 2"));
  CHECK(Says(custom("0>0"), "from a participant to itself"));
  CHECK(Says(custom("0>1;0>1;1>2;2>0"), "0>1 is given twice"));
  CHECK(Says(custom("0>1*x"), "the weight in '0>1*x' is not a finite number"));
  CHECK(Says(custom("0>1*inf"), "not a finite number"));
  CHECK(Says(custom("0>1*0.5;1>2"), "give every edge a weight, or none"));
  CHECK(Says(custom("0>1;1>0"), "not everybody's value reaches everybody"));
  CHECK(Says(custom("0>1*0.5;1>2*0.5;2>0*0.5;0>0*0.5;1>1*0.5;2>2*0.4"),
             "those that participant 2 hears sum to 0.9"));
}

}  // namespace
}  // namespace horon::gossip
