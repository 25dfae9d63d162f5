// The identities of Adasum on the op itself, for numbers of ranks, layouts of nodes, paths, dtypes
// and tensors drawn at random. The numbers are those of docs/algorithms.md.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "test/support/catch.h"
#include "test/support/op_runner.h"
#include "test/unit/ops/adasum_bucket.h"

namespace horon {
namespace {

using test::AdasumTolerance;
using test::Decoded;
using test::GapOf;
using test::Inner;
using test::kFloats;
using test::OpResult;
using test::OpRunner;
using test::OpTensor;
using test::SameOnAll;
using test::Values;

constexpr const char* kWays[] = {
    "adasum",           "adasum:algo=halving,chunk=256", "adasum:algo=doubling",
    "adasum:algo=tree", "adasum:algo=halving",           "adasum:algo=ring"};

// One node; nodes of equal size but the last; or any rank on any node.
Topology AnyNodes(int ranks, std::mt19937& random) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  switch (random() % 3) {
    case 0:
      return Topology::OneNode(ranks);
    case 1:
      return Topology::Blocks(ranks, 1 + below(ranks));
    default:
      std::vector<int> node_of = {0};
      while (static_cast<int>(node_of.size()) < ranks) {
        const int nodes = 1 + *std::max_element(node_of.begin(), node_of.end());
        node_of.push_back(below(nodes + 1));
      }
      return Topology::FromNodes(node_of);
  }
}

struct Drawn {
  Topology layout;
  DataType dtype;
  std::string way;
  std::mt19937 random;

  int ranks() const { return layout.size(); }
  // By rank: gradients of this draw with that many elements.
  std::vector<Values> Gradients(int64_t count) {
    return test::Gradients(dtype, ranks(), count, static_cast<unsigned>(random() % 1000));
  }
  double tolerance() const { return ranks() * AdasumTolerance(dtype, ranks()); }
};

// The test case runs once for every draw.
Drawn Draw() {
  const unsigned draw = GENERATE(range(0u, 150u));
  std::mt19937 random(draw + 1);
  const int ranks = 1 + static_cast<int>(random() % 17);
  Drawn drawn{AnyNodes(ranks, random), kFloats[random() % 4], kWays[random() % 6], random};
  UNSCOPED_INFO("draw " << draw << ": " << drawn.way << " of " << NameOf(drawn.dtype) << " on "
                        << ranks << " ranks, " << drawn.layout.nodes() << " nodes");
  return drawn;
}

// What comes of a tensor, after it was the same on all ranks.
Values Combined(const Drawn& drawn, const std::vector<Values>& by_rank, const std::string& op) {
  OpRunner runner(drawn.layout, 3);
  const OpResult result = runner.Run(op, {OpTensor::Make(drawn.dtype, by_rank)});
  INFO(result.status.message());
  REQUIRE(result.status.ok());
  REQUIRE(SameOnAll(result, 0, drawn.ranks()));
  return Decoded(drawn.dtype, result, 0, 0);
}
Values Combined(const Drawn& drawn, const std::vector<Values>& by_rank) {
  return Combined(drawn, by_rank, drawn.way);
}

TEST_CASE("A2, A3: factors, signs and other orders of elements go through the op", "[adasum]") {
  Drawn drawn = Draw();
  const auto count = static_cast<size_t>(1 + drawn.random() % 300);
  const std::vector<Values> plain = drawn.Gradients(static_cast<int64_t>(count));
  // Chunks of a ring have coefficients of their own, so elements must stay in theirs.
  const bool moves = drawn.way != "adasum:algo=ring";
  std::vector<size_t> from(count);
  std::vector<double> factor(count);
  for (size_t i = 0; i < count; ++i) {
    from[i] = i;
    factor[i] = drawn.random() % 2 == 0 ? 4 : -4;
  }
  if (moves) std::shuffle(from.begin(), from.end(), drawn.random);
  const auto turned = [&](const Values& values) {
    Values result(count);
    for (size_t i = 0; i < count; ++i) result[i] = factor[i] * values[from[i]];
    return result;
  };
  std::vector<Values> other;
  for (const Values& values : plain) other.push_back(turned(values));
  const Values want = turned(Combined(drawn, plain)), got = Combined(drawn, other);
  CHECK(GapOf(got, want, other) <= 2 * drawn.tolerance());
  // In fp64 also factors that take the squares out of the range of a double.
  if (drawn.dtype != DataType::kFloat64) return;
  const int power = GENERATE(-1000, -500, -260, 440, 520, 1000);
  for (Values& values : other) values = test::Scaled(std::ldexp(1, power), values);
  const Values far = test::Scaled(std::ldexp(1, -power), Combined(drawn, other));
  for (Values& values : other) values = test::Scaled(std::ldexp(1, -power), values);
  CHECK(GapOf(far, want, other) <= 2 * drawn.tolerance());
}

TEST_CASE("A4, A5: what is orthogonal is added, what is equal stays", "[adasum]") {
  Drawn drawn = Draw();
  const auto ranks = static_cast<size_t>(drawn.ranks());
  std::vector<Values> apart(ranks, Values(3 * ranks));
  Values sum(3 * ranks);
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] = apart[i % ranks][i] = 1.0 + static_cast<double>(i);
  }
  CHECK(Combined(drawn, apart) == sum);
  const std::vector<Values> equal(ranks, drawn.Gradients(77)[0]);
  CHECK(GapOf(Combined(drawn, equal), equal[0], equal) <= drawn.tolerance());
}

TEST_CASE("A8: no result is longer than its gradients' squares allow", "[adasum]") {
  Drawn drawn = Draw();
  const std::vector<Values> by_rank =
      drawn.Gradients(1 + static_cast<int64_t>(drawn.random() % 40));
  double squares = 0;
  for (const Values& gradient : by_rank) squares += Inner(gradient, gradient);
  const Values result = Combined(drawn, by_rank);
  CHECK(Inner(result, result) <= squares * (1 + 2 * drawn.tolerance()));
}

TEST_CASE("A11: one rank's smallest number is averaged, its zero is not, but with zero=mean",
          "[adasum]") {
  Drawn drawn = Draw();
  const int ranks = drawn.ranks(), one = static_cast<int>(drawn.random()) & 0xff;
  if (ranks == 1) return;
  const double least = drawn.dtype == DataType::kFloat16    ? 0x1p-24
                       : drawn.dtype == DataType::kBFloat16 ? 0x1p-133
                       : drawn.dtype == DataType::kFloat32  ? 0x1p-149
                                                            : 0x1p-1074;
  const auto with = [&](double value) {
    std::vector<Values> by_rank(static_cast<size_t>(ranks), Values{3.0});
    by_rank[static_cast<size_t>(one % ranks)] = {value};
    return by_rank;
  };
  const Values mean = {3.0 * (ranks - 1) / ranks};
  const auto gap = [&](const Values& got, const Values& want) {
    return std::fabs(got[0] - want[0]);
  };
  const std::string with_mean = drawn.way + (drawn.way == "adasum" ? ":" : ",") + "zero=mean";
  CHECK(gap(Combined(drawn, with(least)), mean) <= 3 * drawn.tolerance());
  CHECK(gap(Combined(drawn, with(0)), {3.0}) <= 3 * drawn.tolerance());
  CHECK(gap(Combined(drawn, with(0), with_mean), mean) <= 3 * drawn.tolerance());
}

// What `local` does, and a bucket of up to six tensors: empty ones, of one element, of fewer than
// there are ranks.
struct DrawnBucket {
  std::string local, op;
  std::vector<std::vector<Values>> values;  // by tensor, by rank
  DrawnBucket(Drawn& drawn, bool rings) {
    constexpr const char* kLocals[] = {"adasum", "average", "sum"};
    const bool ring = drawn.way == "adasum:algo=ring";
    local = ring && rings ? "adasum" : kLocals[drawn.random() % 3];  // rings take all ranks alike
    op = ring && !rings ? "adasum" : drawn.way;
    op += (op == "adasum" ? ":local=" : ",local=") + local;
    const auto tensors = 1 + drawn.random() % 6;
    for (size_t t = 0; t < tensors; ++t) {
      const auto ranks = static_cast<unsigned>(drawn.ranks());
      const unsigned counts[] = {0, 1, static_cast<unsigned>(drawn.random()) % ranks,
                                 static_cast<unsigned>(drawn.random()) % 3000};
      values.push_back(drawn.Gradients(counts[drawn.random() % 4]));
    }
  }
  OpResult Run(Drawn& drawn) const {
    std::vector<OpTensor> tensors;
    for (const auto& by_rank : values)
      tensors.push_back(
          OpTensor::Make(drawn.dtype, by_rank).Named("t" + std::to_string(tensors.size())));
    return OpRunner(drawn.layout, 3, drawn.random() % 2 == 0).Run(op, tensors);
  }
};

// Equal nodes of 2^k neighbouring ranks: then the tree is that over the ranks, which folds first.
bool TreeGoesThroughNodes(const Topology& layout) {
  int expected = 0;
  for (int node = 0; node < layout.nodes(); ++node) {
    const size_t size = layout.members(node).size();
    if (size != layout.members(0).size() || !std::has_single_bit(size)) return false;
    for (const int rank : layout.members(node)) {
      if (rank != expected++) return false;
    }
  }
  return true;
}

TEST_CASE("A14: every path is the reference tree, whatever the nodes and tensors", "[adasum]") {
  Drawn drawn = Draw();
  const DrawnBucket bucket(drawn, false);
  const OpResult result = bucket.Run(drawn);
  INFO(bucket.op << ": " << result.status.message());
  REQUIRE(result.status.ok());
  for (size_t t = 0; t < bucket.values.size(); ++t) {
    const auto& by_rank = bucket.values[t];
    INFO("tensor " << t << " of " << by_rank[0].size() << " elements");
    REQUIRE(SameOnAll(result, t, drawn.ranks()));
    const bool flat = bucket.local == "adasum" && TreeGoesThroughNodes(drawn.layout);
    const Values want = flat ? test::AdasumOf(by_rank)
                             : test::AdasumOverNodes(drawn.layout, by_rank, bucket.local);
    CHECK(GapOf(Decoded(drawn.dtype, result, t, 0), want, by_rank) <=
          2 * AdasumTolerance(drawn.dtype, drawn.ranks()));
  }
}

TEST_CASE("A13: a NaN or Inf is in its tensor, on all ranks, and in no other", "[adasum]") {
  Drawn drawn = Draw();
  DrawnBucket bucket(drawn, true);
  const int ranks = drawn.ranks();
  const auto bad = drawn.random() % bucket.values.size();
  auto& values = bucket.values[bad];
  if (values[0].empty()) values = drawn.Gradients(2500);
  const auto rank = drawn.random() % static_cast<unsigned>(ranks);
  const auto place = drawn.random() % values[0].size();
  values[rank][place] = drawn.random() % 2 == 0 ? std::numeric_limits<double>::quiet_NaN()
                                                : std::numeric_limits<double>::infinity();
  const OpResult result = bucket.Run(drawn);
  INFO(bucket.op << ": " << result.status.message());
  REQUIRE(result.status.ok());
  const bool ring = bucket.op.find("ring") != std::string::npos;
  // Where nothing is weighed it stays where it is; in a ring what travels together is NaN.
  const bool weighed = (bucket.local == "adasum" ? ranks : drawn.layout.nodes()) > 1;
  for (size_t t = 0; t < bucket.values.size(); ++t) {
    REQUIRE(SameOnAll(result, t, ranks));
    const Values got = Decoded(drawn.dtype, result, t, 0);
    const auto finite = std::count_if(got.begin(), got.end(), [](double x) {
      return std::isfinite(x);
    });
    if (t != bad) CHECK(finite == static_cast<int64_t>(got.size()));
    if (t == bad) CHECK_FALSE(std::isfinite(got[place]));
    if (t == bad && weighed && !ring) CHECK(finite == 0);
  }
}

TEST_CASE("A15: whatever is fused with whatever, in any order, the bits are those of lone tensors",
          "[adasum]") {
  Drawn drawn = Draw();
  std::vector<OpTensor> tensors;
  for (int i = 0; i < 7; ++i) {
    const auto count = static_cast<int64_t>(drawn.random() % (i == 0 ? 9000 : 400)) * (i % 3);
    tensors.push_back(
        OpTensor::Make(drawn.dtype, drawn.Gradients(count + i % 2)).Named("t" + std::to_string(i)));
  }
  std::shuffle(tensors.begin(), tensors.end(), drawn.random);
  OpRunner runner(drawn.layout, 3);
  for (size_t begin = 0; begin < tensors.size();) {
    const size_t end = std::min(tensors.size(), begin + 1 + drawn.random() % 4);
    const std::vector<OpTensor> bucket(tensors.begin() + static_cast<std::ptrdiff_t>(begin),
                                       tensors.begin() + static_cast<std::ptrdiff_t>(end));
    const OpResult fused = runner.Run(drawn.way, bucket);
    REQUIRE(fused.status.ok());
    for (size_t t = 0; t < bucket.size(); ++t) {
      const OpResult alone = runner.Run(drawn.way, {bucket[t]});
      REQUIRE(alone.status.ok());
      CHECK(alone.at(0, 0).bytes == fused.at(t, 0).bytes);
    }
    begin = end;
  }
}

}  // namespace
}  // namespace horon
