// One-peer dissemination averaging: the mean is conserved; 2^K participants agree after K rounds.
#include <bit>
#include <cmath>

#include "test/support/catch.h"
#include "test/support/op_runner.h"

namespace horon {
namespace {

using test::Near;
using test::OpRunner;
using test::OpTensor;
using test::Values;

// Runs one round: what each rank has afterwards.
std::vector<Values> Round(OpRunner& runner, const std::string& op, DataType dtype,
                          const std::vector<Values>& before) {
  const auto result = runner.Run(op, {OpTensor::Make(dtype, before)});
  INFO(result.status.message());
  REQUIRE(result.status.ok());
  std::vector<Values> after;
  for (int rank = 0; rank < runner.world().size(); ++rank) {
    after.push_back(test::Decode(dtype, result.at(0, rank).bytes));
  }
  return after;
}

Values MeanOf(const std::vector<Values>& by_rank) {
  Values mean(by_rank[0].size());
  for (const Values& one : by_rank) {
    for (size_t i = 0; i < mean.size(); ++i)
      mean[i] += one[i] / static_cast<double>(by_rank.size());
  }
  return mean;
}

double LargestGap(const std::vector<Values>& by_rank, const Values& mean) {
  double gap = 0;
  for (const Values& one : by_rank) {
    for (size_t i = 0; i < mean.size(); ++i) gap = std::max(gap, std::fabs(one[i] - mean[i]));
  }
  return gap;
}

std::vector<Values> Start(int ranks, int64_t count) {
  std::vector<Values> values;
  for (int rank = 0; rank < ranks; ++rank) values.push_back(test::Fractions(rank + 1, count));
  return values;
}

TEST_CASE("round t meets the ranks 2^(t mod K) away", "[dissemination]") {
  for (int size = 1; size <= 9; ++size) {
    OpRunner runner(Topology::OneNode(size), 2, size % 2 == 0);
    const int period = std::bit_width(static_cast<unsigned>(size - 1));
    std::vector<Values> now = Start(size, 20);
    for (int t = 0; t < 6; ++t) {
      const auto before = now;
      now = Round(runner, "dissemination", DataType::kFloat64, before);
      const int distance = period == 0 ? 0 : 1 << (t % period);
      for (int rank = 0; rank < size; ++rank) {
        const auto& own = before[static_cast<size_t>(rank)];
        const auto& theirs = before[static_cast<size_t>((rank - distance + size) % size)];
        for (size_t i = 0; i < own.size(); ++i) {
          REQUIRE(now[static_cast<size_t>(rank)][i] == 0.5 * own[i] + 0.5 * theirs[i]);
        }
      }
    }
  }
}

TEST_CASE("the mean is conserved and the ranks approach it", "[dissemination]") {
  for (int size = 2; size <= 9; ++size) {
    OpRunner runner(Topology::Blocks(size, 2), 2);
    std::vector<Values> now = Start(size, 50);
    const Values mean = MeanOf(now);
    const double first_gap = LargestGap(now, mean);
    for (int t = 0; t < 24; ++t) {
      now = Round(runner, "dissemination", DataType::kFloat64, now);
      REQUIRE(LargestGap({MeanOf(now)}, mean) < 1e-14);
    }
    REQUIRE(LargestGap(now, mean) < first_gap / 100);
  }
}

TEST_CASE("2^K ranks have exactly the same after K rounds", "[dissemination]") {
  for (const int size : {1, 2, 4, 8}) {
    OpRunner runner(Topology::OneNode(size), 2);
    // Whole numbers with room below: the halves are exact.
    std::vector<Values> now;
    for (int rank = 0; rank < size; ++rank)
      now.push_back(test::SmallValues(DataType::kFloat32, rank, 100));
    const Values mean = MeanOf(now);
    for (int t = 1; t < size; t *= 2) now = Round(runner, "dissemination", DataType::kFloat32, now);
    for (const Values& one : now) REQUIRE(one == mean);
  }
}

TEST_CASE("equal values are a fixed point in every floating dtype", "[dissemination]") {
  for (const DataType dtype :
       {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    OpRunner runner(Topology::OneNode(3), 2);
    const Values same = test::Decode(dtype, test::Encode(dtype, test::Fractions(1, 300)));
    std::vector<Values> now(3, same);
    for (int t = 0; t < 3; ++t) now = Round(runner, "dissemination", dtype, now);
    for (const Values& one : now) REQUIRE(one == same);
  }
}

TEST_CASE("a bucket's tensors in different rounds meet different ranks", "[dissemination]") {
  OpRunner runner(Topology::OneNode(4), 2);
  const auto tensor = [](const char* name) {
    return OpTensor::Make(DataType::kFloat32, {{0}, {1}, {2}, {3}}).Named(name);
  };
  REQUIRE(runner.Run("dissemination", {tensor("old")}).status.ok());
  REQUIRE(runner.world().net().messages_sent(0) == 1);
  const auto result = runner.Run("dissemination", {tensor("old"), tensor("new"), tensor("new2")});
  REQUIRE(result.status.ok());
  REQUIRE(runner.world().net().messages_sent(0) == 3);  // one for round 1, one for both in round 0
  REQUIRE(test::Decode(DataType::kFloat32, result.at(0, 3).bytes) == Values{2});    // with rank 1
  REQUIRE(test::Decode(DataType::kFloat32, result.at(1, 3).bytes) == Values{2.5});  // with rank 2
  REQUIRE(test::Decode(DataType::kFloat32, result.at(2, 3).bytes) == Values{2.5});
}

TEST_CASE("a caller may count the rounds; all must count alike", "[dissemination]") {
  OpRunner runner(Topology::OneNode(4), 2);
  OpTensor tensor = OpTensor::Make(DataType::kFloat32, {{0}, {1}, {2}, {3}});
  for (Request& request : tensor.requests) request.round = 5;  // 5 mod 2: distance 2
  const auto result = runner.Run("dissemination", {tensor});
  REQUIRE(result.status.ok());
  REQUIRE(test::Decode(DataType::kFloat32, result.at(0, 3).bytes) == Values{2});
  tensor.requests[1].round = 6;
  REQUIRE(runner.Run("dissemination", {tensor})
              .status.message()
              .find("Mismatched rounds for tensor 'w': "
                    "ranks [0, 2, 3] have round 5") == 0);
}

TEST_CASE("scaling: before and after", "[dissemination]") {
  for (const char* op : {"dissemination", "dissemination:hierarchical=1"}) {
    for (const int size : {1, 2}) {
      OpRunner runner(Topology::Blocks(size, 1), 2);
      const std::vector<Values> values =
          size == 1 ? std::vector<Values>{{4}} : std::vector<Values>{{4}, {8}};
      const auto result =
          runner.Run(op, {OpTensor::Make(DataType::kFloat32, values).Scaled(3, 0.5)});
      REQUIRE(result.status.ok());
      REQUIRE(test::Decode(DataType::kFloat32, result.at(0, 0).bytes) ==
              Values{size == 1 ? 6.0 : 9.0});
    }
  }
}

TEST_CASE("hierarchical: nodes average inside and meet as one", "[dissemination]") {
  for (const Topology& topology : test::TestTopologies()) {
    OpRunner runner(topology, 2);
    std::vector<Values> now = Start(topology.size(), 40);
    for (int t = 0; t < 3; ++t) {
      std::vector<Values> node_means;
      for (int node = 0; node < topology.nodes(); ++node) {
        std::vector<Values> inside;
        for (const int rank : topology.members(node))
          inside.push_back(now[static_cast<size_t>(rank)]);
        node_means.push_back(MeanOf(inside));
      }
      const int nodes = topology.nodes();
      const int period = std::bit_width(static_cast<unsigned>(nodes - 1));
      const int distance = period == 0 ? 0 : 1 << (t % period);
      now = Round(runner, "dissemination:hierarchical=1", DataType::kFloat64, now);
      for (int rank = 0; rank < topology.size(); ++rank) {
        const int node = topology.node_of(rank);
        const Values expected =
            MeanOf({node_means[static_cast<size_t>(node)],
                    node_means[static_cast<size_t>((node - distance + nodes) % nodes)]});
        REQUIRE(Near(DataType::kFloat32, now[static_cast<size_t>(rank)], expected));
      }
    }
  }
}

}  // namespace
}  // namespace horon
