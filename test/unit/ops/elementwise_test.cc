// sum, average, min, max, product: every dtype, layout and size against a serial reference in
// double.
#include "test/support/catch.h"
#include "test/support/op_runner.h"

namespace horon {
namespace {

using test::Near;
using test::OpRunner;
using test::OpTensor;
using test::Values;

struct Case {
  const char* op;
  ReduceKind kind;
  bool average;
};
constexpr Case kCases[] = {{"sum", ReduceKind::kSum, false},
                           {"average", ReduceKind::kSum, true},
                           {"min", ReduceKind::kMin, false},
                           {"max", ReduceKind::kMax, false},
                           {"product", ReduceKind::kProduct, false}};

std::vector<Values> InputsOf(DataType dtype, int ranks, int64_t count) {
  std::vector<Values> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(test::SmallValues(dtype, rank, count));
  return inputs;
}

void CheckCase(OpRunner& runner, const Case& one, DataType dtype, int64_t count, double prescale,
               double postscale) {
  const int size = runner.world().size();
  const bool scaled = one.average || prescale != 1.0 || postscale != 1.0;
  const auto inputs = InputsOf(dtype, size, count);
  const auto result =
      runner.Run(one.op, {OpTensor::Make(dtype, inputs).Scaled(prescale, postscale)});
  INFO(one.op << " of " << count << " " << NameOf(dtype) << " on " << size << " ranks, scale "
              << prescale << " " << postscale << ": " << result.status.message());
  if (!Supports(one.kind, dtype, scaled)) {
    REQUIRE(result.status.code() == Code::kInvalidArgument);
    return;
  }
  REQUIRE(result.status.ok());
  const double scale = one.average ? postscale / size : postscale;
  REQUIRE(Near(dtype, test::Decode(dtype, result.at(0, 0).bytes),
               test::Reduced(one.kind, dtype, inputs, prescale, scale)));
  for (int rank = 1; rank < size; ++rank)
    REQUIRE(result.at(0, rank).bytes == result.at(0, 0).bytes);
}

TEST_CASE("elementwise ops on every layout, dtype and size", "[ops]") {
  for (const Topology& topology : test::TestTopologies()) {
    OpRunner runner(topology, 5);
    for (const Case& one : kCases) {
      for (const DataType dtype : test::kAllTypes) {
        for (const int64_t count : {0, 1, 3, 17, 1000})
          CheckCase(runner, one, dtype, count, 1.0, 1.0);
      }
    }
  }
}

TEST_CASE("scaling: before and after, integers truncated towards zero", "[ops]") {
  for (const Topology& topology :
       {Topology::OneNode(3), Topology::Blocks(3, 2), Topology::OneNode(1)}) {
    OpRunner runner(topology, 6);
    for (const Case& one : kCases) {
      for (const DataType dtype : test::kAllTypes) {
        CheckCase(runner, one, dtype, 500, 2.0, 0.5);
        CheckCase(runner, one, dtype, 500, 1.0, 0.3);
      }
    }
  }
}

TEST_CASE("an average of integers is truncated once", "[ops]") {
  // Node sums of 3 and 4: truncated on each node they would give (1 + 2) / 2 = 1, wrong for 7 / 4
  // too if it were rounded; -7 / 4 goes towards zero.
  OpRunner runner(Topology::Blocks(4, 2));
  const auto result = runner.Run(
      "average",
      {OpTensor::Make(DataType::kInt32, {{1, -1, 3}, {2, -2, 0}, {2, -2, 0}, {2, -2, 0}})});
  REQUIRE(result.status.ok());
  REQUIRE(test::Decode(DataType::kInt32, result.at(0, 3).bytes) == Values{1, -1, 0});
}

TEST_CASE("a fused bucket gives what its tensors give alone", "[ops]") {
  for (const Topology& topology : test::TestTopologies()) {
    std::vector<OpTensor> bucket;
    for (int64_t count : {5L, 0L, 3000L, 1L}) {
      std::vector<Values> values;
      for (int rank = 0; rank < topology.size(); ++rank)
        values.push_back(test::Fractions(rank + 3, count));
      bucket.push_back(
          OpTensor::Make(DataType::kFloat32, values).Named("t" + std::to_string(count)));
    }
    OpRunner fused(topology, 1), alone(topology, 2, /*in_place=*/true);
    const auto together = fused.Run("average", bucket);
    REQUIRE(together.status.ok());
    for (size_t t = 0; t < bucket.size(); ++t) {
      const auto single = alone.Run("average", {bucket[t]});
      for (int rank = 0; rank < topology.size(); ++rank) {
        REQUIRE(single.at(0, rank).bytes == together.at(t, rank).bytes);
      }
    }
  }
}

}  // namespace
}  // namespace horon
