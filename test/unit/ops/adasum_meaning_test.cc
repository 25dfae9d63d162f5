// The op adasum: what it does to parallel, orthogonal, zero and broken gradients, what it sends and
// keeps, and what it refuses.
#include <cmath>
#include <limits>

#include "test/support/catch.h"
#include "test/support/op_runner.h"
#include "test/unit/ops/adasum_bucket.h"

namespace horon {
namespace {

using test::AdasumTolerance;
using test::Bucket;
using test::Decoded;
using test::Gradients;
using test::kFloats;
using test::kPaths;
using test::OpResult;
using test::OpRunner;
using test::OpTensor;
using test::RaggedBucket;
using test::RelativeGap;
using test::SameOnAll;
using test::Scaled;
using test::Values;

// --- what it means -------------------------------------------------------------------------------

struct Lengths {
  DataType dtype;
  double least, most;
};

TEST_CASE("A5: parallel gradients are averaged over the whole range of lengths", "[adasum]") {
  const auto [dtype, least, most] = GENERATE(Lengths{DataType::kFloat16, 0x1p-14, 0x1p7},
                                             Lengths{DataType::kBFloat16, 0x1p-126, 0x1p63},
                                             Lengths{DataType::kFloat32, 0x1p-126, 0x1p63},
                                             Lengths{DataType::kFloat64, 0x1p-1022, 0x1p1016});
  const int ranks = GENERATE(range(2, 18));
  const int shift = GENERATE(0, 1, 5);
  const char* const path = kPaths[GENERATE(range(0u, 4u))];
  std::vector<Values> by_rank(static_cast<size_t>(ranks), Values(20));
  Values mean(20);
  for (int k = 0; k < ranks; ++k) {  // one whole power of two a rank, in some order
    const double step = (std::log2(most) - std::log2(least)) / (ranks - 1);
    const double length = std::exp2(std::floor(std::log2(least) + step * k));
    // Every other one, then those between.
    const int place = k < (ranks + 1) / 2 ? 2 * k : 2 * (k - (ranks + 1) / 2) + 1;
    Values& mine = by_rank[static_cast<size_t>((place + shift) % ranks)];
    for (size_t i = 0; i < mean.size(); ++i) {
      mine[i] = length * (1 + static_cast<double>(i % 4) / 4);
      mean[i] += mine[i] / ranks;
    }
  }
  OpRunner runner(Topology::OneNode(ranks), 1);
  const OpResult result = runner.Run(path, {OpTensor::Make(dtype, by_rank)});
  REQUIRE(result.status.ok());
  INFO(NameOf(dtype) << " on " << ranks << ", " << path);
  // The squares of fp64's longest and shortest vectors are no doubles.
  const double unit = std::exp2(-std::floor(std::log2(most)));
  const Values got = Scaled(unit, Decoded(dtype, result, 0, 0));
  CHECK(RelativeGap(got, Scaled(unit, mean)) <= AdasumTolerance(dtype, ranks));
}

// Gradients times the smallest normal number, of which many have lost bits: beside what any may be
// off, one of the last bits at each level.
TEST_CASE("A5: parallel gradients that are hardly numbers are averaged", "[adasum]") {
  const auto [dtype, tiny, quantum] =
      GENERATE(Lengths{DataType::kFloat16, 0x1p-14, 0x1p-24},
               Lengths{DataType::kBFloat16, 0x1p-126, 0x1p-133},
               Lengths{DataType::kFloat32, 0x1p-126, 0x1p-149},
               Lengths{DataType::kFloat64, 0x1p-1022, 0x1p-1074});
  for (int ranks = 2; ranks <= 17; ++ranks) {
    const Values shared =
        test::Decode(dtype, test::Encode(dtype, Scaled(tiny, test::Gradient(dtype, 0, 1000))));
    std::vector<Values> by_rank;
    for (int rank = 0; rank < ranks; ++rank)
      by_rank.push_back(Scaled(rank % 2 == 0 ? 1 : 2, shared));
    const Values mean = Scaled(1 + static_cast<double>(ranks / 2) / ranks, shared);
    for (const char* path : kPaths) {
      OpRunner runner(Topology::OneNode(ranks), 1);
      const OpResult result = runner.Run(path, {OpTensor::Make(dtype, by_rank)});
      REQUIRE(result.status.ok());
      const Values got = Decoded(dtype, result, 0, 0);
      double off = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double may = AdasumTolerance(dtype, ranks) * std::abs(mean[i]);
        off = std::max(off, std::abs(got[i] - mean[i]) - may);
      }
      INFO(NameOf(dtype) << " on " << ranks << ", " << path);
      CHECK(off / quantum <= std::log2(ranks) + 2);
    }
  }
}

TEST_CASE("orthogonal gradients are added, on every path", "[adasum]") {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::vector<Values> by_rank(static_cast<size_t>(ranks), Values(static_cast<size_t>(3 * ranks)));
    Values sum(static_cast<size_t>(3 * ranks));
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = by_rank[i % static_cast<size_t>(ranks)][i] = 1.0 + static_cast<double>(i);
    }
    for (const char* path : kPaths) {
      OpRunner runner(Topology::OneNode(ranks), 1);
      const OpResult result = runner.Run(path, {OpTensor::Make(DataType::kFloat32, by_rank)});
      REQUIRE(result.status.ok());
      CHECK(Decoded(DataType::kFloat32, result, 0, 0) == sum);
    }
  }
}

TEST_CASE("a NaN or Inf on one rank makes that tensor NaN on all ranks, and no other", "[adasum]") {
  for (const int ranks : {2, 3, 4, 7}) {
    for (const DataType dtype : kFloats) {
      for (const char* path : kPaths) {
        for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
          Bucket bucket = RaggedBucket(dtype, ranks);
          bucket.values[4][1][2222] = bad;
          bucket.tensors[4] = OpTensor::Make(dtype, bucket.values[4]).Named("bad");
          OpRunner runner(Topology::OneNode(ranks), 1);
          const OpResult result = runner.Run(path, bucket.tensors);
          REQUIRE(result.status.ok());
          for (int rank = 0; rank < ranks; ++rank) {
            for (const double x : Decoded(dtype, result, 4, rank)) REQUIRE(std::isnan(x));
            for (const double x : Decoded(dtype, result, 3, rank)) REQUIRE(std::isfinite(x));
          }
        }
      }
    }
  }
}

TEST_CASE("zero=mean averages what some ranks did not use", "[adasum]") {
  for (int ranks = 2; ranks <= 6; ++ranks) {
    std::vector<Values> by_rank(static_cast<size_t>(ranks), Values(8));
    by_rank[1] = Values(8, 6.0);
    OpRunner runner(Topology::OneNode(ranks), 1);
    const OpTensor tensor = OpTensor::Make(DataType::kFloat64, by_rank);
    const OpResult sum = runner.Run("adasum", {tensor}),
                   mean = runner.Run("adasum:zero=mean", {tensor});
    CHECK(Decoded(DataType::kFloat64, sum, 0, 0) == Values(8, 6.0));
    CHECK(RelativeGap(Decoded(DataType::kFloat64, mean, 0, 0), Values(8, 6.0 / ranks)) < 1e-15);
  }
}

TEST_CASE("prescale and postscale", "[adasum]") {
  for (const Topology& topology : {Topology::OneNode(1), Topology::OneNode(3),
                                   Topology::Blocks(4, 2), Topology::Blocks(5, 2)}) {
    for (const char* path : {"adasum", "adasum:algo=tree", "adasum:local=average"}) {
      const auto values = Gradients(DataType::kFloat64, topology.size(), 300, 4);
      OpRunner runner(topology, 1);
      const auto plain = OpTensor::Make(DataType::kFloat64, values);
      const OpResult one = runner.Run(path, {plain});
      const OpResult scaled = runner.Run(path, {OpTensor(plain).Scaled(4.0, 0.5)});
      REQUIRE(scaled.status.ok());
      CHECK(SameOnAll(scaled, 0, topology.size()));
      const Values twice = test::Scaled(2.0, Decoded(DataType::kFloat64, one, 0, 0));
      CHECK(Decoded(DataType::kFloat64, scaled, 0, 0) == twice);
    }
  }
}

// --- what it costs -------------------------------------------------------------------------------

TEST_CASE("halving sends 2 S (p-1)/p and the dots, doubling S log2 p", "[adasum]") {
  const int64_t count = 1 << 16, bytes = count * 4;
  for (const int ranks : {2, 4, 8}) {
    const auto tensor =
        OpTensor::Make(DataType::kFloat32, Gradients(DataType::kFloat32, ranks, count, 1));
    const int levels = ranks == 2 ? 1 : ranks == 4 ? 2 : 3;
    OpRunner halving(Topology::OneNode(ranks), 1), doubling(Topology::OneNode(ranks), 1);
    REQUIRE(halving.Run("adasum:algo=halving", {tensor}).status.ok());
    REQUIRE(doubling.Run("adasum:algo=doubling", {tensor}).status.ok());
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t dots = 32 * levels * (levels + 1) / 2;
      CHECK(halving.world().net().bytes_sent(rank) == 2 * bytes * (ranks - 1) / ranks + dots);
      CHECK(doubling.world().net().bytes_sent(rank) == bytes * levels);
    }
  }
}

// The most that a rank has taken from its pool for a bucket of 1 MiB, in steps that repeat.
int64_t ScratchOf(const std::string& op, const Topology& topology) {
  constexpr int64_t kBucket = 1 << 18;  // elements
  std::vector<OpTensor> bucket;
  for (const int64_t count : {kBucket - 70, int64_t{1}, int64_t{5}, int64_t{33}}) {
    const auto values = Gradients(DataType::kFloat32, topology.size(), count, 1);
    bucket.push_back(
        OpTensor::Make(DataType::kFloat32, values).Named("w" + std::to_string(count)));
  }
  OpRunner runner(topology, 1, /*in_place=*/true);
  int64_t most = 0;
  for (int call = 0; call < 3; ++call) {
    REQUIRE(runner.Run(op, bucket).status.ok());
    for (int rank = 0; rank < topology.size(); ++rank)
      most = std::max(most, runner.world().fabric(rank).host_pool->held_bytes());
  }
  return most;
}

TEST_CASE("scratch is at most half of the bucket, and taken from the pool", "[adasum]") {
  constexpr int64_t kHalf = 512 << 10;
  const std::string op = GENERATE("adasum", "adasum:algo=tree", "adasum:algo=ring",
                                  "adasum:local=average", "adasum:local=sum,chunk=0");
  for (const Topology& topology :
       {Topology::OneNode(2), Topology::OneNode(3), Topology::OneNode(4), Topology::OneNode(7),
        Topology::Blocks(4, 2), Topology::Blocks(3, 1), Topology::Blocks(6, 3),
        Topology::Blocks(5, 4), Topology::Blocks(7, 5)}) {
    INFO(op << " on " << topology.size() << " ranks, " << topology.nodes() << " nodes");
    const int64_t scratch = ScratchOf(op, topology);
    // Between nodes, the inner products of slices that several ranks hold.
    CHECK(scratch <= kHalf + (topology.nodes() > 1 ? 512 : 0));
    CHECK(scratch > 0);
  }
}

TEST_CASE("doubling's scratch is the bucket, since both take all of each other's", "[adasum]") {
  CHECK(ScratchOf("adasum:algo=doubling", Topology::OneNode(2)) == 1 << 20);
}

TEST_CASE("what adasum refuses", "[adasum]") {
  OpRunner runner(Topology::OneNode(2), 1);
  const Status integer = runner.Check("adasum", OpTensor::Make(DataType::kInt32, {{1}, {2}}));
  CHECK(integer.message() == "Op 'adasum' needs a floating data type; tensor 'w' is int32.");
  OpTable table;
  for (const char* wrong :
       {"adasum:algo=star", "adasum:local=max", "adasum:zero=1", "adasum:chunk=-1", "adasum:x=1"}) {
    CHECK(table.Find(wrong).status().code() == Code::kInvalidArgument);
  }
  Request request;
  request.name = "w";
  request.op = "adasum";
  request.dtype = DataType::kInt64;
  CHECK(table.Find("adasum").value()->CheckAlone(request).code() == Code::kInvalidArgument);
  request.dtype = DataType::kBFloat16;
  CHECK(table.Find("adasum").value()->CheckAlone(request).ok());
}

TEST_CASE("a failed post ends adasum with that failure", "[adasum]") {
  for (const char* path : kPaths) {
    for (int more = 0; more < 40; ++more) {
      OpRunner runner(Topology::OneNode(3), 1);
      runner.world().net().FailPostAfter(more);
      const auto values = Gradients(DataType::kFloat32, 3, 50, 1);
      const OpResult result = runner.Run(path, {OpTensor::Make(DataType::kFloat32, values)});
      CHECK(runner.world().net().lent() == 0);
      if (result.status.ok()) break;
      // Of the rank that failed, or of one that waits for it (the world calls that stuck).
      const Code code = result.status.code();
      CHECK((code == Code::kUnavailable || code == Code::kInternal));
    }
  }
}

}  // namespace
}  // namespace horon
