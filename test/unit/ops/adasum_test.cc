// The op adasum: every path, layout and dtype against the reference tree in double.
#include <cstring>
#include <limits>

#include "test/support/catch.h"
#include "test/support/op_runner.h"
#include "test/unit/ops/adasum_reference.h"

namespace horon {
namespace {

using test::AdasumOf;
using test::AdasumTolerance;
using test::GapOf;
using test::Gradient;
using test::OpResult;
using test::OpRunner;
using test::OpTensor;
using test::RelativeGap;
using test::Summand;
using test::Values;

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32,
                                DataType::kFloat64};
const char* const kPaths[] = {"adasum", "adasum:algo=halving", "adasum:algo=doubling",
                              "adasum:algo=tree"};
// Ragged: nothing, one, fewer than ranks, odd, more than a block of dots.
constexpr int64_t kRagged[] = {1, 5, 0, 33, 2500};

std::vector<Values> Gradients(DataType dtype, int ranks, int64_t count, unsigned seed) {
  std::vector<Values> by_rank;
  for (int rank = 0; rank < ranks; ++rank) by_rank.push_back(Gradient(dtype, rank, count, seed));
  return by_rank;
}

struct Bucket {
  std::vector<OpTensor> tensors;
  std::vector<std::vector<Values>> values;  // by tensor, by rank
};
Bucket RaggedBucket(DataType dtype, int ranks) {
  Bucket bucket;
  unsigned seed = 1;
  for (const int64_t count : kRagged) {
    bucket.values.push_back(Gradients(dtype, ranks, count, seed));
    bucket.tensors.push_back(
        OpTensor::Make(dtype, bucket.values.back()).Named("t" + std::to_string(seed++)));
  }
  return bucket;
}

Values Decoded(DataType dtype, const OpResult& result, size_t tensor, int rank) {
  return test::Decode(dtype, result.at(tensor, rank).bytes);
}

bool SameOnAll(const OpResult& result, size_t tensor, int ranks) {
  for (int rank = 1; rank < ranks; ++rank) {
    if (result.at(tensor, rank).bytes != result.at(tensor, 0).bytes) return false;
  }
  return true;
}

TEST_CASE("A14: every path is the reference tree, for 1 to 17 ranks and ragged tensors",
          "[adasum]") {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const DataType dtype : kFloats) {
      const Bucket bucket = RaggedBucket(dtype, ranks);
      for (const char* path : kPaths) {
        OpRunner runner(Topology::OneNode(ranks), static_cast<uint64_t>(ranks), ranks % 2 == 0);
        const OpResult result = runner.Run(path, bucket.tensors);
        INFO(path << " of " << NameOf(dtype) << " on " << ranks << ": " << result.status.message());
        REQUIRE(result.status.ok());
        for (size_t t = 0; t < bucket.tensors.size(); ++t) {
          REQUIRE(SameOnAll(result, t, ranks));
          const Values want = AdasumOf(bucket.values[t]);
          const double gap = GapOf(Decoded(dtype, result, t, 0), want, bucket.values[t]);
          REQUIRE(gap <= AdasumTolerance(dtype, ranks));
        }
      }
    }
  }
}

TEST_CASE("all paths give the same bits, however cut into chunks", "[adasum]") {
  for (const int ranks : {2, 3, 4, 6, 8}) {
    for (const DataType dtype : kFloats) {
      std::vector<OpTensor> bucket;
      for (const int64_t count : {int64_t{70'001}, int64_t{13}, int64_t{9000}}) {
        bucket.push_back(OpTensor::Make(dtype, Gradients(dtype, ranks, count, 7))
                             .Named("w" + std::to_string(count)));
      }
      OpRunner runner(Topology::OneNode(ranks), 5);
      const OpResult first = runner.Run("adasum:algo=halving", bucket);
      REQUIRE(first.status.ok());
      for (const char* other :
           {"adasum:algo=doubling", "adasum:algo=tree", "adasum:algo=halving,chunk=0",
            "adasum:algo=halving,chunk=1000", "adasum:algo=tree,chunk=4096"}) {
        const OpResult result = runner.Run(other, bucket);
        INFO(other << " of " << NameOf(dtype) << " on " << ranks);
        REQUIRE(result.status.ok());
        for (size_t t = 0; t < bucket.size(); ++t) {
          REQUIRE(result.at(t, 0).bytes == first.at(t, 0).bytes);
        }
      }
    }
  }
}

TEST_CASE("A15: fused tensors have the bits of lone ones, in any order", "[adasum]") {
  for (const Topology& topology : {Topology::OneNode(2), Topology::OneNode(5),
                                   Topology::Blocks(6, 3), Topology::Blocks(5, 2)}) {
    for (const char* path : {"adasum", "adasum:local=average", "adasum:local=sum"}) {
      for (const DataType dtype : kFloats) {
        Bucket bucket = RaggedBucket(dtype, topology.size());
        const auto large = Gradients(dtype, topology.size(), 40'000, 9);  // not small any more
        bucket.tensors.push_back(OpTensor::Make(dtype, large).Named("large"));
        OpRunner runner(topology, 3);
        const OpResult fused = runner.Run(path, bucket.tensors);
        std::vector<OpTensor> reversed(bucket.tensors.rbegin(), bucket.tensors.rend());
        const OpResult backwards = runner.Run(path, reversed);
        REQUIRE(fused.status.ok());
        REQUIRE(backwards.status.ok());
        for (size_t t = 0; t < reversed.size(); ++t) {
          const OpResult alone = runner.Run(path, {bucket.tensors[t]});
          REQUIRE(alone.status.ok());
          REQUIRE(alone.at(0, 0).bytes == fused.at(t, 0).bytes);
          REQUIRE(backwards.at(reversed.size() - 1 - t, 0).bytes == fused.at(t, 0).bytes);
        }
      }
    }
  }
}

// --- several nodes -------------------------------------------------------------------------------

// The definition over nodes: what each node brings, and for how many leaves it stands.
Values OverNodes(const Topology& topology, const std::vector<Values>& by_rank,
                 const std::string& local) {
  std::vector<Summand> row;
  for (int node = 0; node < topology.nodes(); ++node) {
    const auto& members = topology.members(node);
    std::vector<Summand> of_node;
    Values sum(by_rank[0].size());
    for (const int rank : members) {
      of_node.push_back({by_rank[static_cast<size_t>(rank)], 1});
      sum = test::Plus(sum, by_rank[static_cast<size_t>(rank)]);
    }
    const auto size = static_cast<double>(members.size());
    if (local == "adasum") row.push_back(test::AdasumTree(of_node));
    if (local == "average") row.push_back({test::Scaled(1 / size, sum), size});
    if (local == "sum") row.push_back({sum, 1});
  }
  return test::AdasumTree(row).value;
}

std::vector<Topology> Layouts() {
  std::vector<Topology> layouts = test::TestTopologies();
  layouts.push_back(Topology::Blocks(8, 4));
  layouts.push_back(Topology::Blocks(12, 3));
  layouts.push_back(Topology::Blocks(13, 4));  // 4 + 4 + 4 + 1
  layouts.push_back(Topology::Blocks(15, 5));  // three nodes of five
  layouts.push_back(Topology::FromNodes({0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2}));  // 6 + 3 + 4
  layouts.push_back(Topology::FromNodes({0, 1, 0, 1, 0, 1, 0, 1}));
  return layouts;
}

TEST_CASE("on several nodes of any size the definition over nodes holds", "[adasum]") {
  for (const Topology& topology : Layouts()) {
    for (const std::string local : {"adasum", "average", "sum"}) {
      for (const char* path : {"auto", "tree"}) {
        for (const DataType dtype : kFloats) {
          const Bucket bucket = RaggedBucket(dtype, topology.size());
          OpRunner runner(topology, 11);
          const std::string op = "adasum:chunk=512,local=" + local + ",algo=" + path;
          const OpResult result = runner.Run(op, bucket.tensors);
          INFO(op << " of " << NameOf(dtype) << " on " << topology.size() << " ranks, "
                  << topology.nodes() << " nodes: " << result.status.message());
          REQUIRE(result.status.ok());
          for (size_t t = 0; t < bucket.tensors.size(); ++t) {
            REQUIRE(SameOnAll(result, t, topology.size()));
            const Values want = OverNodes(topology, bucket.values[t], local);
            const double allowed = 2 * AdasumTolerance(dtype, topology.size());
            const double gap = GapOf(Decoded(dtype, result, t, 0), want, bucket.values[t]);
            REQUIRE(gap <= allowed);
          }
        }
      }
    }
  }
}

TEST_CASE("nodes of 2, 4 and 8 neighbours change nothing but the messages", "[adasum]") {
  for (const int local_size : {2, 4, 8}) {
    const Bucket bucket = RaggedBucket(DataType::kFloat32, 16);
    OpRunner one(Topology::OneNode(16), 1), many(Topology::Blocks(16, local_size), 2);
    const OpResult a = one.Run("adasum", bucket.tensors), b = many.Run("adasum", bucket.tensors);
    REQUIRE(a.status.ok());
    REQUIRE(b.status.ok());
    for (size_t t = 0; t < bucket.tensors.size(); ++t) CHECK(a.at(t, 0).bytes == b.at(t, 0).bytes);
  }
}

// --- what it means -------------------------------------------------------------------------------

TEST_CASE("parallel gradients are averaged over the whole range of lengths", "[adasum]") {
  struct Span {
    DataType dtype;
    double least, most;
  };
  const Span spans[] = {{DataType::kFloat16, 0x1p-14, 0x1p7},
                        {DataType::kBFloat16, 0x1p-126, 0x1p63},
                        {DataType::kFloat32, 0x1p-126, 0x1p63},
                        {DataType::kFloat64, 0x1p-250, 0x1p250}};
  for (const auto& [dtype, least, most] : spans) {
    for (int ranks = 2; ranks <= 9; ++ranks) {
      for (const int shift : {0, 1, 5}) {
        std::vector<Values> by_rank(static_cast<size_t>(ranks));
        Values mean(20);
        for (int k = 0; k < ranks; ++k) {  // one whole power of two a rank, in some order
          const double step = (std::log2(most) - std::log2(least)) / (ranks - 1);
          const double length = std::exp2(std::floor(std::log2(least) + step * k));
          auto& mine = by_rank[static_cast<size_t>((k * 2 + shift) % ranks)];
          auto& place =
              mine.empty() ? mine : by_rank[static_cast<size_t>((k * 2 + 1 + shift) % ranks)];
          for (size_t i = 0; i < mean.size(); ++i) {
            place.push_back(length * (1 + static_cast<double>(i % 4) / 4));
            mean[i] += place.back() / ranks;
          }
        }
        OpRunner runner(Topology::OneNode(ranks), 1);
        const OpResult result = runner.Run("adasum", {OpTensor::Make(dtype, by_rank)});
        REQUIRE(result.status.ok());
        INFO(NameOf(dtype) << " on " << ranks);
        CHECK(RelativeGap(Decoded(dtype, result, 0, 0), mean) <= AdasumTolerance(dtype, ranks));
      }
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
      const int64_t dots = 24 * levels * (levels + 1) / 2;
      CHECK(halving.world().net().bytes_sent(rank) == 2 * bytes * (ranks - 1) / ranks + dots);
      CHECK(doubling.world().net().bytes_sent(rank) == bytes * levels);
    }
  }
}

TEST_CASE("halving's scratch is half of the bucket, and taken from the pool", "[adasum]") {
  constexpr int64_t kCount = 1 << 18;
  for (const int ranks : {2, 3, 4}) {
    OpRunner runner(Topology::OneNode(ranks), 1, /*in_place=*/true);
    const auto tensor =
        OpTensor::Make(DataType::kFloat32, Gradients(DataType::kFloat32, ranks, kCount, 1));
    for (int call = 0; call < 3; ++call) {
      REQUIRE(runner.Run("adasum", {tensor}).status.ok());
      for (int rank = 0; rank < ranks; ++rank) {
        CHECK(runner.world().fabric(rank).host_pool->held_bytes() <= kCount * 4 / 2);
      }
    }
  }
}

TEST_CASE("what adasum refuses", "[adasum]") {
  OpRunner runner(Topology::OneNode(2), 1);
  const Status integer = runner.Check("adasum", OpTensor::Make(DataType::kInt32, {{1}, {2}}));
  CHECK(integer.message() == "Op 'adasum' needs a floating data type; tensor 'w' is int32.");
  OpTable table;
  for (const char* wrong :
       {"adasum:algo=ring", "adasum:local=max", "adasum:zero=1", "adasum:chunk=-1", "adasum:x=1"}) {
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
