// "gossip": after t rounds every value is what W(t) ... W(0) says, element by element.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>

#include "ops/gossip/contraction.h"
#include "test/support/op_runner.h"
#include "test/unit/ops/gossip/graphs.h"

namespace horon::gossip {
namespace {

using test::kFloats;
using test::OpRunner;
using test::OpTensor;
using test::Values;

std::vector<Values> Start(int ranks, int64_t count) {
  std::vector<Values> values;
  for (int rank = 0; rank < ranks; ++rank) values.push_back(test::Fractions(rank + 1, count));
  return values;
}

std::string OpOf(const std::string& parameters) {
  return parameters.empty() ? "gossip" : "gossip:" + parameters;
}

std::vector<Values> Run(OpRunner& runner, const std::string& op, OpTensor tensor) {
  const DataType dtype = tensor.requests[0].dtype;
  const auto result = runner.Run(op, {std::move(tensor)});
  INFO(op << ": " << result.status.message());
  REQUIRE(result.status.ok());
  std::vector<Values> after;
  for (int rank = 0; rank < runner.world().size(); ++rank)
    after.push_back(test::Decode(dtype, result.at(0, rank).bytes));
  return after;
}

// matrix * values, in double.
std::vector<Values> Times(const Matrix& matrix, const std::vector<Values>& values) {
  const size_t n = values.size();
  std::vector<Values> after(n, Values(values[0].size()));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t e = 0; e < after[i].size(); ++e) after[i][e] += matrix[i * n + j] * values[j][e];
    }
  }
  return after;
}

double LargestGap(const std::vector<Values>& a, const std::vector<Values>& b) {
  double gap = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t e = 0; e < a[i].size(); ++e) gap = std::max(gap, std::fabs(a[i][e] - b[i][e]));
  }
  return gap;
}

double Epsilon(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return 0x1p-10;
    case DataType::kBFloat16:
      return 0x1p-7;
    case DataType::kFloat32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

TEST_CASE("every topology: rounds are the products of its matrices", "[gossip]") {
  for (const Claim& claim : kCatalogue) {
    for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 31, 32}) {
      if (!Allowed(claim.sizes, n)) continue;
      const std::string op = OpOf(claim.parameters);
      INFO(op << " of " << n);
      OpRunner runner(Topology::OneNode(n), 2, n % 2 == 0);
      const Graph graph = MakeGraph(claim.parameters, n);
      const std::vector<Values> start = Start(n, 30);
      std::vector<Values> now = start;
      for (int t = 0; t < 7; ++t) {
        now = Run(runner, op, OpTensor::Make(DataType::kFloat64, now));
        REQUIRE(LargestGap(now, Times(Product(graph, 0, t + 1), start)) < 1e-14);
      }
    }
  }
}

TEST_CASE("gossip with everybody is allreduce's average", "[gossip]") {  // M5
  for (const DataType dtype : kFloats) {
    for (const int n : {1, 2, 3, 5, 8, 13, 16, 32}) {
      INFO(NameOf(dtype) << " of " << n);
      std::vector<Values> start = Start(n, 50);
      for (Values& one : start) one = test::Decode(dtype, test::Encode(dtype, one));
      OpRunner runner(Topology::OneNode(n), 2);
      const auto gossip = Run(runner, "gossip:graph=complete", OpTensor::Make(dtype, start));
      const auto average = Run(runner, "average", OpTensor::Make(dtype, start));
      const double bound = dtype == DataType::kFloat64 ? n * Epsilon(dtype) : 2 * Epsilon(dtype);
      REQUIRE(LargestGap(gossip, average) <= bound);
      for (const Values& one : gossip) REQUIRE(LargestGap({one}, {gossip[0]}) <= bound);
    }
  }
}

// The op of the same graph whose participant i is label[i].
std::string Relabelled(const Graph& graph, const std::vector<int>& label) {
  std::string op = "gossip:graph=custom,n=" + std::to_string(graph.size()) + ",edges=";
  for (int64_t t = 0; t < graph.period(); ++t) {
    const Round round = graph.At(t);
    if (t > 0) op += '/';
    for (int i = 0; i < round.size(); ++i) {
      std::vector<Neighbor> from = round.from[static_cast<size_t>(i)];
      from.push_back({i, round.self[static_cast<size_t>(i)]});
      for (const Neighbor& one : from) {
        char text[64];
        std::snprintf(text, sizeof(text), "%d>%d*%.17g", label[static_cast<size_t>(one.rank)],
                      label[static_cast<size_t>(i)], one.weight);
        if (op.back() != '=' && op.back() != '/') op += ';';
        op += text;
      }
    }
  }
  return op;
}

TEST_CASE("ranks in another order: the same values, in that order", "[gossip]") {  // M7
  for (const Claim& claim : kCatalogue) {
    for (const auto& [n, push] : {std::pair{4, false}, std::pair{5, false},
                                  std::pair{6, false}, std::pair{5, true}}) {
      if (!Allowed(claim.sizes, n)) continue;
      const std::string parameters =
          push ? With(claim.parameters, "mixing=push") : claim.parameters;
      const Graph graph = MakeGraph(parameters, n);
      if (graph.period() == 0) continue;  // custom graphs repeat
      const std::vector<int> label = Shuffled(n, 11, 1);
      const std::string other = Relabelled(graph, label);
      INFO(parameters << " of " << n << " as " << other);
      const auto moved = [&](const std::vector<Values>& values) {
        std::vector<Values> to(values.size());
        for (size_t i = 0; i < values.size(); ++i) to[static_cast<size_t>(label[i])] = values[i];
        return to;
      };
      OpRunner runner(Topology::OneNode(n), 2), relabelled(Topology::OneNode(n), 2);
      std::vector<Values> now = Start(n, 20), there = moved(now);
      for (int64_t t = 0; t < std::min<int64_t>(6, graph.period() + 1); ++t) {
        now = Run(runner, OpOf(parameters), OpTensor::Make(DataType::kFloat64, now));
        there = Run(relabelled, other, OpTensor::Make(DataType::kFloat64, there));
        REQUIRE(LargestGap(moved(now), there) < (push ? 4e-15 : 1e-15));  // sums lie beyond 1
      }
    }
  }
}

TEST_CASE("one round in every dtype is right to its rounding", "[gossip]") {
  for (const char* op : {"gossip:graph=ring", "gossip:graph=star", "gossip:graph=base,k=2",
                         "gossip:graph=star,mixing=push", "gossip:graph=ring,lazy=1"}) {
    for (const DataType dtype : kFloats) {
      std::vector<Values> start = Start(5, 5000);  // beyond a block of the arithmetic
      for (Values& one : start) one = test::Decode(dtype, test::Encode(dtype, one));
      OpRunner runner(Topology::OneNode(5), 2);
      const auto now = Run(runner, op, OpTensor::Make(dtype, start));
      const auto want = Times(Product(MakeGraph(std::string(op).substr(7), 5), 0, 1), start);
      INFO(op << " " << NameOf(dtype));
      CHECK(LargestGap(now, want) <= 2 * Epsilon(dtype));
    }
  }
}

TEST_CASE("equal values stay as they are, to the last bit", "[gossip]") {  // M3
  const auto stay = [](const std::string& parameters, int n) {
    for (const DataType dtype : kFloats) {
      INFO(parameters << " of " << n << " " << NameOf(dtype));
      const Values same = test::Decode(dtype, test::Encode(dtype, test::Fractions(1, 300)));
      OpRunner runner(Topology::OneNode(n), 2);
      std::vector<Values> now(static_cast<size_t>(n), same);
      for (int t = 0; t < 4; ++t) now = Run(runner, OpOf(parameters), OpTensor::Make(dtype, now));
      for (const Values& one : now) REQUIRE(one == same);
    }
  };
  for (const Claim& claim : kCatalogue) {
    for (const int n : {3, 7, 16}) {
      if (Allowed(claim.sizes, n)) stay(claim.parameters, n);
    }
  }
  stay("graph=symmetric_exponential,lazy=1", 7);
  stay("graph=static_exponential,mixing=uniform,lazy=1", 7);
}

// Numerators and weights of push-sum, which go the same way.
struct Quotients {
  std::vector<Values> x, w;
  Quotients(std::vector<Values> start, DataType of)
      : x(std::move(start)), w(x.size(), Values(1, 1.0)), dtype(of) {}
  void Mix(OpRunner& runner, const std::string& op) {
    x = Run(runner, op, OpTensor::Make(dtype, x).Named("x"));
    w = Run(runner, op, OpTensor::Make(dtype, w).Named("w"));
  }
  std::vector<Values> z() const {
    std::vector<Values> quotients = x;
    for (size_t i = 0; i < x.size(); ++i) {
      for (double& value : quotients[i]) value /= w[i][0];
    }
    return quotients;
  }
  DataType dtype;
};

TEST_CASE("push-sum: equal quotients stay what they are, whatever the weights", "[gossip]") {  // M3
  const std::string op = "gossip:graph=star,mixing=push";
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    OpRunner runner(Topology::OneNode(5), 2);
    Quotients push(std::vector<Values>(5, Values(1, 1.0)), dtype);
    for (int t = 0; t < 5; ++t) push.Mix(runner, op);
    REQUIRE(push.w[0][0] > 2 * push.w[1][0]);  // or nothing would be shown
    // A power of 2 goes through all roundings as 1 does; others are rounded on the way.
    const Values same = {0.125, 0.7, -0.3};
    for (size_t i = 0; i < 5; ++i) {
      push.x[i] = same;
      for (double& value : push.x[i]) value *= push.w[i][0];
      push.x[i] = test::Decode(dtype, test::Encode(dtype, push.x[i]));
    }
    for (int t = 1; t <= 5; ++t) {
      push.Mix(runner, op);
      for (const Values& z : push.z()) {
        CHECK(z[0] == same[0]);
        CHECK(LargestGap({z}, {same}) <= 4 * t * Epsilon(dtype));
      }
    }
  }
}

double Distance(const std::vector<Values>& a, const std::vector<Values>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t e = 0; e < a[i].size(); ++e) sum += (a[i][e] - b[i][e]) * (a[i][e] - b[i][e]);
  }
  return std::sqrt(sum);
}

// By element: of all ranks.
Values MeanOf(const std::vector<Values>& values) {
  Values mean(values[0].size());
  for (const Values& one : values) {
    for (size_t e = 0; e < mean.size(); ++e)
      mean[e] += one[e] / static_cast<double>(values.size());
  }
  return mean;
}

TEST_CASE("the mean is kept, and approached as fast as the graph contracts", "[gossip]") {  // M1 M4
  for (const Claim& claim : kCatalogue) {
    for (const int n : {2, 5, 8, 9, 16}) {
      if (!Allowed(claim.sizes, n)) continue;
      const Graph graph = MakeGraph(claim.parameters, n);
      const auto start = Start(n, 16);
      const std::vector<Values> mean(static_cast<size_t>(n), MeanOf(start));
      for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
        OpRunner runner(Topology::OneNode(n), 2);
        std::vector<Values> now = start;
        for (int t = 1; t <= 12; ++t) {
          now = Run(runner, OpOf(claim.parameters), OpTensor::Make(dtype, now));
          INFO(claim.parameters << " of " << n << " " << NameOf(dtype) << " round " << t);
          const double rounding = t * n * Epsilon(dtype);  // no value is beyond 1
          REQUIRE(LargestGap({MeanOf(now)}, {mean[0]}) <= rounding);
          REQUIRE(Distance(now, mean) <=
                  Contraction(graph, 0, t) * Distance(start, mean) + 4 * rounding);
        }
      }
    }
  }
}

// A ring one way and so many edges more, anywhere.
std::string Digraph(int n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::set<std::pair<int, int>> edges;
  for (int i = 0; i < n; ++i) edges.emplace(i, (i + 1) % n);
  for (int i = 0; i < n; ++i) {
    const auto from = static_cast<int>(random() % static_cast<uint64_t>(n));
    const auto to = static_cast<int>(random() % static_cast<uint64_t>(n));
    if (from != to) edges.emplace(from, to);
  }
  std::string parameters = "graph=custom,n=" + std::to_string(n) + ",edges=";
  for (const auto& [from, to] : edges) {
    if (parameters.back() != '=') parameters += ';';
    parameters += std::to_string(from) + '>' + std::to_string(to);
  }
  return parameters + ",mixing=push";
}

TEST_CASE("push-sum: numerators and weights keep their sums, quotients find the mean",
          "[gossip]") {  // M2 M4
  int uneven = 0;
  for (const int n : {3, 5, 8, 13}) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        const std::string parameters = Digraph(n, seed);
        const Graph graph = MakeGraph(parameters, n);
        OpRunner runner(Topology::OneNode(n), 2);
        const auto start = Start(n, 10);
        const std::vector<Values> mean(static_cast<size_t>(n), MeanOf(start));
        Quotients push(start, dtype);
        for (int t = 1; t <= 40; ++t) {
          push.Mix(runner, OpOf(parameters));
          INFO(parameters << " " << NameOf(dtype) << " round " << t);
          // A round's roundings, of weights, products and sums, are parts of what is there: n.
          const double rounding = 2.0 * t * n * Epsilon(dtype);
          REQUIRE(std::fabs(MeanOf(push.w)[0] - 1) * n <= rounding);
          REQUIRE(LargestGap({MeanOf(push.x)}, {mean[0]}) * n <= rounding);
          const double least = (*std::min_element(push.w.begin(), push.w.end()))[0];
          REQUIRE(Distance(push.z(), mean) <=
                  Contraction(graph, 0, t) * Distance(start, mean) + 4 * rounding / least);
          uneven += t == 40 && least < 0.6 ? 1 : 0;
        }
      }
    }
  }
  CHECK(uneven >= 16);  // or the quotient would prove nothing
}

TEST_CASE("a bucket's tensors share messages, whatever their rounds", "[gossip]") {
  OpRunner runner(Topology::OneNode(4), 2);
  const auto tensor = [](const char* name) {
    return OpTensor::Make(DataType::kFloat32, {{0}, {1}, {2}, {3}}).Named(name);
  };
  const std::string op = "gossip:graph=one_peer_exponential";
  REQUIRE(runner.Run(op, {tensor("old")}).status.ok());
  REQUIRE(runner.world().net().messages_sent(0) == 1);
  const auto result = runner.Run(op, {tensor("new"), tensor("old"), tensor("new2")});
  REQUIRE(result.status.ok());
  REQUIRE(runner.world().net().messages_sent(0) == 3);  // to ranks 1 and 2
  CHECK(test::Decode(DataType::kFloat32, result.at(0, 3).bytes) == Values{2.5});
  CHECK(test::Decode(DataType::kFloat32, result.at(1, 3).bytes) == Values{2});
  CHECK(test::Decode(DataType::kFloat32, result.at(2, 3).bytes) == Values{2.5});
}

TEST_CASE("tensors of many slices, in place and not", "[gossip]") {
  for (const bool in_place : {false, true}) {
    OpRunner runner(Topology::OneNode(3), 4, in_place);
    const auto big = Start(3, 700000), small = Start(3, 7);  // 2.8 MB: three slices
    const auto result =
        runner.Run("gossip:graph=ring", {OpTensor::Make(DataType::kFloat32, small).Named("a"),
                                         OpTensor::Make(DataType::kFloat32, big).Named("b"),
                                         OpTensor::Make(DataType::kFloat32, small).Named("c")});
    INFO(result.status.message());
    REQUIRE(result.status.ok());
    const auto want = Times(Matrix(9, 1.0 / 3), big);
    for (int rank = 0; rank < 3; ++rank) {
      const Values got = test::Decode(DataType::kFloat32, result.at(1, rank).bytes);
      CHECK(LargestGap({got}, {want[0]}) < 1e-6);
    }
  }
}

TEST_CASE("the caller may say which round it is", "[gossip]") {
  OpRunner runner(Topology::OneNode(4), 2);
  const std::string op = "gossip:graph=one_peer_exponential";
  OpTensor tensor = OpTensor::Make(DataType::kFloat32, {{0}, {1}, {2}, {3}});
  const auto at = [&](int64_t round) {
    for (Request& request : tensor.requests) request.round = round;
    return Run(runner, op, tensor)[3];
  };
  CHECK(at(5) == Values{2});    // distance 2
  CHECK(at(0) == Values{2.5});  // round 6: distance 1
  CHECK(at(0) == Values{2});
  CHECK(at(-1) == Values{2.5});  // round 0 once more
  CHECK(at(0) == Values{2});
  for (Request& request : tensor.requests) request.round = 5;
  tensor.requests[1].round = 6;
  CHECK(runner.Check(op, tensor)
            .message()
            .find("Mismatched rounds for tensor 'w': ranks [0, 2, 3] "
                  "have round 5, rank [1] has round 6") == 0);
  for (Request& request : tensor.requests) request.round = -2;
  CHECK(runner.Check(op, tensor).message().find("there is no round -2") != std::string::npos);
}

TEST_CASE("graphs that the ranks cannot have", "[gossip]") {
  OpRunner runner(Topology::OneNode(3), 2);
  const OpTensor tensor = OpTensor::Make(DataType::kFloat32, {{0}, {1}, {2}});
  CHECK(runner.Check("gossip:graph=shift_one", tensor).message() ==
        "gossip of tensor 'w': shift_one needs an even number of participants, not 3");
  OpRunner nodes(Topology::Blocks(6, 2), 2);
  const auto six = OpTensor::Make(DataType::kFloat32, {{0}, {1}, {2}, {3}, {4}, {5}});
  const auto result = nodes.Run("gossip:graph=shift_one,hierarchical=1", {six});
  CHECK(result.status.code() == Code::kInvalidArgument);
  CHECK(result.status.message().find("not 3") != std::string::npos);
}

// By node: a round on a ring of the nodes, whose ranks average, or add, before it.
std::vector<Values> MixedInRing(const Topology& topology, const std::vector<Values>& start,
                                bool sum) {
  const int nodes = topology.nodes();
  const size_t count = start[0].size();
  std::vector<Values> inside(static_cast<size_t>(nodes), Values(count));
  for (int rank = 0; rank < topology.size(); ++rank) {
    const int node = topology.node_of(rank);
    const auto share = static_cast<double>(topology.members(node).size());
    for (size_t e = 0; e < count; ++e)
      inside[static_cast<size_t>(node)][e] +=
          start[static_cast<size_t>(rank)][e] / (sum ? 1.0 : share);
  }
  return Times(Product(MakeGraph("graph=ring", nodes), 0, 1), inside);
}

TEST_CASE("hierarchical: nodes average inside, or add, and mix as one", "[gossip]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const bool sum : {false, true}) {
      OpRunner runner(topology, 2);
      const auto start = Start(topology.size(), 40);
      const auto want = MixedInRing(topology, start, sum);
      const auto now =
          Run(runner,
              std::string("gossip:graph=ring,hierarchical=1,inside=") + (sum ? "sum" : "average"),
              OpTensor::Make(DataType::kFloat64, start));
      for (int rank = 0; rank < topology.size(); ++rank)
        CHECK(LargestGap({now[static_cast<size_t>(rank)]},
                         {want[static_cast<size_t>(topology.node_of(rank))]}) < 1e-14);
    }
  }
}

// More slices than are in flight, of which some lie in several tensors.
TEST_CASE("hierarchical: tensors go in slices", "[gossip]") {
  const auto topology = Topology::FromNodes({0, 0, 1});
  for (const bool in_place : {false, true}) {
    OpRunner runner(topology, 2, in_place);
    std::vector<std::vector<Values>> starts;
    std::vector<OpTensor> bucket;
    for (const int64_t count : {1'150'001, 5, 100'003}) {
      starts.push_back(Start(3, count));
      bucket.push_back(OpTensor::Make(DataType::kFloat64, starts.back()).Scaled(4, 0.25));
      bucket.back().Named("w" + std::to_string(count));
    }
    const auto result = runner.Run("gossip:graph=ring,hierarchical=1", bucket);
    INFO(result.status.message());
    REQUIRE(result.status.ok());
    for (size_t t = 0; t < bucket.size(); ++t) {
      const auto want = MixedInRing(topology, starts[t], /*sum=*/false);
      for (int rank = 0; rank < topology.size(); ++rank) {
        const Values now = test::Decode(DataType::kFloat64, result.at(t, rank).bytes);
        REQUIRE(now.size() == starts[t][0].size());
        CHECK(LargestGap({now}, {want[static_cast<size_t>(topology.node_of(rank))]}) < 1e-14);
      }
    }
  }
}

TEST_CASE("gossip scales before and after", "[gossip]") {
  for (const char* op : {"gossip:graph=ring", "gossip:graph=ring,hierarchical=1"}) {
    for (const int size : {1, 2}) {
      OpRunner runner(Topology::Blocks(size, 1), 2);
      const auto values = size == 1 ? std::vector<Values>{{4}} : std::vector<Values>{{4}, {8}};
      const auto now = Run(runner, op, OpTensor::Make(DataType::kFloat32, values).Scaled(3, 0.5));
      CHECK(now[0] == Values{size == 1 ? 6.0 : 9.0});
    }
  }
}

}  // namespace
}  // namespace horon::gossip
