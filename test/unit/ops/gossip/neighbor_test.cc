// "neighbor_allreduce" and "neighbor_allgather": lists and weights that come with the call.
#include <cmath>
#include <numeric>
#include <random>

#include "ops/gossip/graph.h"
#include "test/support/catch.h"
#include "test/support/op_runner.h"

namespace horon::gossip {
namespace {

using test::OpRunner;
using test::OpTensor;
using test::Values;

// One rank's arguments.
struct Says {
  std::vector<int64_t> sources, destinations;
  std::vector<double> weights;  // self, sources, destinations
};

OpTensor Tensor(const std::vector<Says>& by_rank, int64_t count = 1,
                DataType dtype = DataType::kFloat64) {
  std::vector<Values> values;
  for (size_t rank = 0; rank < by_rank.size(); ++rank)
    values.push_back(Values(static_cast<size_t>(count), std::pow(10.0, double(rank))));
  OpTensor tensor = OpTensor::Make(dtype, values);
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Says& says = by_rank[rank];
    std::vector<int64_t>& splits = tensor.requests[rank].splits;
    splits = {static_cast<int64_t>(rank), static_cast<int64_t>(says.sources.size())};
    splits.insert(splits.end(), says.sources.begin(), says.sources.end());
    splits.insert(splits.end(), says.destinations.begin(), says.destinations.end());
    tensor.requests[rank].weights = says.weights;
  }
  return tensor;
}

Values FirstOfEach(OpRunner& runner, const std::string& op, const OpTensor& tensor) {
  const auto result = runner.Run(op, {tensor});
  INFO(result.status.message());
  REQUIRE(result.status.ok());
  Values values;
  for (int rank = 0; rank < runner.world().size(); ++rank)
    values.push_back(test::Decode(tensor.requests[0].dtype, result.at(0, rank).bytes).back());
  return values;
}

const std::vector<Says> kChain = {
    {{1}, {1, 2}, {0.5, 2, 1, 3}}, {{0}, {0, 2}, {1, 1, 0.25, 1}}, {{1, 0}, {}, {0, 1, -1}}};

TEST_CASE("weights of receivers and senders multiply", "[gossip]") {
  OpRunner runner(Topology::OneNode(3), 2);
  // Rank 0: 0.5 x 1 + 2 x 0.25 x 10. Rank 1: 10 + 1 x 1 x 1. Rank 2: 10 - 3 x 1.
  CHECK(FirstOfEach(runner, "neighbor_allreduce", Tensor(kChain)) == Values{5.5, 11, 7});
  CHECK(FirstOfEach(runner, "neighbor_allreduce", Tensor(kChain, 400000)) == Values{5.5, 11, 7});
  CHECK(FirstOfEach(runner, "neighbor_allreduce", Tensor(kChain).Scaled(2, 0.25)) ==
        Values{2.75, 5.5, 3.5});
  // Nobody meets anybody.
  CHECK(FirstOfEach(runner, "neighbor_allreduce",
                    Tensor({{{}, {}, {1}}, {{}, {}, {2}}, {{}, {}, {3}}})) == Values{1, 20, 300});
}

TEST_CASE("random neighbors and weights: the product of their matrix", "[gossip]") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const int n = 1 + static_cast<int>(seed % 7);
    uint64_t state = seed;
    const auto draw = [&] {
      return (state = state * 6364136223846793005u + 1442695040888963407u) >> 40;
    };
    std::vector<Says> says(static_cast<size_t>(n));
    std::vector<Values> matrix(static_cast<size_t>(n), Values(static_cast<size_t>(n)));
    std::vector<std::vector<double>> sent(static_cast<size_t>(n));
    for (size_t i = 0; i < says.size(); ++i) {
      matrix[i][i] = double(draw() % 9) / 4;
      says[i].weights = {matrix[i][i]};
    }
    for (size_t i = 0; i < says.size(); ++i) {
      for (size_t j = says.size(); j-- > 0;) {  // sources in descending order
        if (i == j || draw() % 2 == 0) continue;
        const double heard = double(draw() % 9) / 4 - 1, given = double(draw() % 5) / 2;
        says[i].sources.push_back(static_cast<int64_t>(j));
        says[i].weights.push_back(heard);
        says[j].destinations.push_back(static_cast<int64_t>(i));
        sent[j].push_back(given);
        matrix[i][j] = heard * given;
      }
    }
    for (size_t i = 0; i < says.size(); ++i)
      says[i].weights.insert(says[i].weights.end(), sent[i].begin(), sent[i].end());
    OpRunner runner(Topology::OneNode(n), seed);
    const Values now = FirstOfEach(runner, "neighbor_allreduce", Tensor(says));
    for (size_t i = 0; i < says.size(); ++i) {
      double want = 0;
      for (size_t j = 0; j < says.size(); ++j) want += matrix[i][j] * std::pow(10.0, double(j));
      CHECK(now[i] == Approx(want).epsilon(1e-13).margin(1e-9));
    }
  }
}

// Half of them share a weight between both ends of the edge.
TEST_CASE("random weights that sum to 1: equal values stay, to the last bit", "[gossip]") {  // M3
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const size_t n = 2 + seed % 6;
    std::vector<Says> says(n);
    std::vector<std::vector<double>> given(n);
    const auto draw = [&] { return static_cast<double>(1 + random() % 100); };
    for (size_t i = 0; i < n; ++i) {
      std::vector<double> weights = {draw()};
      for (size_t j = 0; j < n; ++j) {
        if (i == j || random() % 3 == 0) continue;
        says[i].sources.push_back(static_cast<int64_t>(j));
        says[j].destinations.push_back(static_cast<int64_t>(i));
        weights.push_back(draw());
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t k = 0; k < weights.size(); ++k) {
        const double at_sender = k > 0 && random() % 2 == 0 ? 0.25 : 1;
        says[i].weights.push_back(weights[k] / sum / at_sender);
        if (k > 0) given[static_cast<size_t>(says[i].sources[k - 1])].push_back(at_sender);
      }
    }
    for (size_t i = 0; i < n; ++i)
      says[i].weights.insert(says[i].weights.end(), given[i].begin(), given[i].end());
    for (const DataType dtype : test::kFloats) {
      INFO("seed " << seed << " " << NameOf(dtype));
      OpTensor tensor = Tensor(says, 100, dtype);
      for (test::Bytes& input : tensor.inputs)
        input = test::Encode(dtype, test::Fractions(1, 100));
      OpRunner runner(Topology::OneNode(static_cast<int>(n)), seed);
      const auto result = runner.Run("neighbor_allreduce", {tensor});
      REQUIRE(result.status.ok());
      for (size_t i = 0; i < n; ++i)
        REQUIRE(result.at(0, static_cast<int>(i)).bytes == tensor.inputs[i]);
    }
  }
}

TEST_CASE("views that do not agree: both are shown", "[gossip]") {
  OpRunner runner(Topology::OneNode(3), 2);
  const auto refusal = [&](size_t rank, Says says, const char* op = "neighbor_allreduce") {
    std::vector<Says> all = kChain;
    all[rank] = std::move(says);
    return runner.Check(op, Tensor(all)).message();
  };
  CHECK(refusal(1, {{}, {0, 2}, {1, 1, 1}}) ==
        "neighbors of tensor 'w': rank [0] sends to ranks [1, 2], but rank [1] hears no rank.");
  CHECK(refusal(0, {{1}, {1}, {1, 1, 1}}) ==
        "neighbors of tensor 'w': rank [2] hears ranks [1, 0], but rank [0] sends to rank [1].");
  CHECK(refusal(0, {{1}, {1, 0}, {1, 1, 1, 1}}).find("rank [0] lists 0, which is itself") !=
        std::string::npos);
  CHECK(refusal(0, {{1}, {1, 3}, {1, 1, 1, 1}}).find("lists 3") != std::string::npos);
  CHECK(refusal(0, {{1, 1}, {1, 2}, {1, 1, 1, 1, 1}}).find("lists 1") != std::string::npos);
  CHECK(refusal(0, {{1}, {1, 2}, {1, 1}}).find("gave 2 weights where there are 4") !=
        std::string::npos);
  CHECK(refusal(0, {{1}, {1, 2}, {1, 1, INFINITY, 1}}).find("not finite") != std::string::npos);
  CHECK(refusal(0, kChain[0], "neighbor_allreduce:sums=rows") ==
        "neighbors of tensor 'w': the weights that 1 hears, its own one included, sum to 2.000000, "
        "not to 1 as was claimed.");
  CHECK(refusal(0, kChain[0], "neighbor_allreduce:sums=columns").find("0 sends") !=
        std::string::npos);
  OpTensor liar = Tensor(kChain);
  liar.requests[1].splits[0] = 5;
  CHECK(runner.Check("neighbor_allreduce", liar).message() ==
        "neighbors of tensor 'w': rank [1] says it is participant 5.");
  liar.requests[1].splits = {1};
  CHECK(runner.Check("neighbor_allreduce", liar).message().find("gave no lists") !=
        std::string::npos);
  const std::vector<Says> half = {{{1}, {1}, {0.5, 0.5, 1}}, {{0}, {0}, {0.5, 0.5, 1}}};
  CHECK(OpRunner(Topology::OneNode(2)).Check("neighbor_allreduce:sums=both", Tensor(half)).ok());
}

TEST_CASE("a ring of nodes, each with its own neighbors", "[gossip]") {
  OpRunner runner(Topology::Blocks(6, 2), 2);
  const Says says[] = {
      {{2}, {1}, {0.5, 0.5, 1}}, {{0}, {2}, {0.5, 0.5, 1}}, {{1}, {0}, {0.5, 0.5, 1}}};
  std::vector<Says> by_rank;
  for (int rank = 0; rank < 6; ++rank) by_rank.push_back(says[rank / 2]);
  OpTensor tensor = Tensor(by_rank, 5);
  for (size_t rank = 0; rank < 6; ++rank)
    tensor.requests[rank].splits[0] = static_cast<int64_t>(rank / 2);
  const Values now = FirstOfEach(runner, "neighbor_allreduce:hierarchical=1", tensor);
  const Values nodes = {5.5, 550, 55000};
  for (size_t rank = 0; rank < 6; ++rank)
    CHECK(now[rank] == Approx((nodes[rank / 2] + nodes[(rank / 2 + 2) % 3]) / 2));
  tensor.requests[3].weights[0] = 0.25;
  CHECK(runner.Check("neighbor_allreduce:hierarchical=1", tensor).message() ==
        "neighbors of tensor 'w': ranks [2] and [3] of node [1] have different neighbors or "
        "weights: node [0] and node [0].");
}

// Those that all ranks weigh alike travel together, whatever lies between them.
TEST_CASE("hierarchical: tensors of several neighborhoods in one bucket", "[gossip]") {
  const Says rings[2][3] = {
      {{{2}, {1}, {0.5, 0.5, 1}}, {{0}, {2}, {0.5, 0.5, 1}}, {{1}, {0}, {0.5, 0.5, 1}}},
      // The other way round, and only the sender of one of them weighs it differently.
      {{{1}, {2}, {0.25, 0.75, 1}}, {{2}, {0}, {0.25, 0.75, 2}}, {{0}, {1}, {0.25, 0.75, 1}}}};
  const Values nodes = {5.5, 550, 55000};
  std::vector<OpTensor> bucket;
  for (const int which : {0, 1, 0, 1, 0}) {
    std::vector<Says> by_rank;
    for (int rank = 0; rank < 6; ++rank) by_rank.push_back(rings[which][rank / 2]);
    bucket.push_back(Tensor(by_rank, 5 + static_cast<int64_t>(bucket.size())));
    for (size_t rank = 0; rank < 6; ++rank)
      bucket.back().requests[rank].splits[0] = static_cast<int64_t>(rank / 2);
    bucket.back().Named("w" + std::to_string(bucket.size()));
  }
  const auto messages = [&](const std::vector<OpTensor>& of) {
    OpRunner runner(Topology::Blocks(6, 2), 2);
    const auto result = runner.Run("neighbor_allreduce:hierarchical=1", of);
    INFO(result.status.message());
    REQUIRE(result.status.ok());
    for (size_t t = 0; t < of.size(); ++t) {
      for (int rank = 0; rank < 6; ++rank) {
        const size_t me = static_cast<size_t>(rank) / 2;
        const size_t ahead = (me + 1) % 3, behind = (me + 2) % 3;
        const double first = (nodes[me] + nodes[behind]) / 2;
        const double other = 0.25 * nodes[me] + 0.75 * (ahead == 1 ? 2 : 1) * nodes[ahead];
        const Values now = test::Decode(DataType::kFloat64, result.at(t, rank).bytes);
        REQUIRE(now.size() == 5 + t);
        for (const double value : now) CHECK(value == Approx(t % 2 == 0 ? first : other));
      }
    }
    return runner.world().net().messages_sent(0);
  };
  const int64_t of_two = messages({bucket[0], bucket[1]});
  CHECK(messages(bucket) == of_two);
}

TEST_CASE("neighbor_allgather: rows of the sources, in the caller's order", "[gossip]") {
  OpRunner runner(Topology::OneNode(3), 2);
  OpTensor tensor = OpTensor::Make(DataType::kInt32, {{1, 2}, {3, 4, 5, 6}, {}});
  tensor.Shaped({{1, 2}, {2, 2}, {0, 2}});
  tensor.requests[0].splits = {0, 2, 2, 1, 2};  // hears 2 and 1, sends to 2
  tensor.requests[1].splits = {1, 1, 2, 0, 2};  // hears 2, sends to 0 and 2
  tensor.requests[2].splits = {2, 2, 1, 0, 0, 1};
  const auto result = runner.Run("neighbor_allgather", {tensor});
  INFO(result.status.message());
  REQUIRE(result.status.ok());
  const auto got = [&](int rank) {
    return test::Decode(DataType::kInt32, result.at(0, rank).bytes);
  };
  CHECK(got(0) == Values{3, 4, 5, 6});
  CHECK(result.at(0, 0).received == std::vector<int64_t>{0, 2});
  CHECK((got(1).empty() && result.at(0, 1).shape == Shape{0, 2}));
  CHECK(got(2) == Values{3, 4, 5, 6, 1, 2});
  CHECK(result.at(0, 2).received == std::vector<int64_t>{2, 1});
  tensor.requests[1].splits = {1, 1, 2, 2};
  CHECK(runner.Check("neighbor_allgather", tensor).message() ==
        "neighbors of tensor 'w': rank [0] hears ranks [2, 1], but rank [1] sends to rank [2].");
}

TEST_CASE("neighbor_allgather: a bucket's tensors share messages, lists and all", "[gossip]") {
  OpRunner runner(Topology::OneNode(3), 2);
  OpTensor one = OpTensor::Make(DataType::kInt32, {{1, 2}, {3}, {}}).Named("one");
  one.requests[0].splits = {0, 1, 1, 1, 2};  // hears 1, sends to 1 and 2
  one.requests[1].splits = {1, 2, 2, 0, 0};  // hears 2 and 0, sends to 0
  one.requests[2].splits = {2, 1, 0, 1};     // hears 0, sends nothing to 1
  OpTensor other = OpTensor::Make(DataType::kInt32, {{4}, {5, 6}, {7}}).Named("other");
  other.requests[0].splits = {0, 2, 2, 1, 1};
  other.requests[1].splits = {1, 1, 0, 0};
  other.requests[2].splits = {2, 0, 0};
  const auto result = runner.Run("neighbor_allgather", {one, other});
  INFO(result.status.message());
  REQUIRE(result.status.ok());
  const auto got = [&](size_t tensor, int rank) {
    return test::Decode(DataType::kInt32, result.at(tensor, rank).bytes);
  };
  CHECK(got(0, 0) == Values{3});
  CHECK(got(0, 1) == Values{1, 2});
  CHECK(result.at(0, 1).received == std::vector<int64_t>{0, 2});
  CHECK(got(0, 2) == Values{1, 2});
  CHECK(got(1, 0) == Values{7, 5, 6});
  CHECK(got(1, 1) == Values{4});
  CHECK((got(1, 2).empty() && result.at(1, 2).received.empty()));
  // To ranks 1 and 2 what rank 0 has, to rank 0 what the others have: one message each.
  CHECK(runner.world().net().messages_sent(0) == 2);
  CHECK(runner.world().net().messages_sent(1) == 1);
  CHECK(runner.world().net().messages_sent(2) == 1);
}

}  // namespace
}  // namespace horon::gossip
