// The op adasum: every path, layout and dtype against the reference tree in double.
#include "test/support/catch.h"
#include "test/support/op_runner.h"
#include "test/unit/ops/adasum_bucket.h"

namespace horon {
namespace {

using test::AdasumOf;
using test::AdasumOverNodes;
using test::AdasumTolerance;
using test::Bucket;
using test::Decoded;
using test::GapOf;
using test::Gradients;
using test::kFloats;
using test::kPaths;
using test::OpResult;
using test::OpRunner;
using test::OpTensor;
using test::RaggedBucket;
using test::SameOnAll;
using test::Values;

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

std::vector<Topology> Layouts() {
  std::vector<Topology> layouts = test::TestTopologies();
  layouts.push_back(Topology::Blocks(8, 4));
  layouts.push_back(Topology::Blocks(12, 3));
  layouts.push_back(Topology::Blocks(13, 4));  // 4 + 4 + 4 + 1
  layouts.push_back(Topology::Blocks(15, 5));  // three nodes of five
  layouts.push_back(Topology::Blocks(16, 4));
  layouts.push_back(Topology::Blocks(17, 2));  // eight nodes of two, and one rank alone
  layouts.push_back(Topology::Blocks(17, 1));
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
            const Values want = AdasumOverNodes(topology, bucket.values[t], local);
            const double allowed = 2 * AdasumTolerance(dtype, topology.size());
            const double gap = GapOf(Decoded(dtype, result, t, 0), want, bucket.values[t]);
            REQUIRE(gap <= allowed);
          }
        }
      }
    }
  }
}

TEST_CASE("nodes of three hear of each other: what is orthogonal between them is added") {
  const Topology topology = Topology::Blocks(6, 3);
  std::vector<Values> by_rank(6, Values{3, 0, 0});
  for (size_t rank = 3; rank < 6; ++rank) by_rank[rank] = {0, 5, 0};
  for (const char* op : {"adasum", "adasum:algo=tree", "adasum:algo=halving"}) {
    OpRunner runner(topology, 5);
    const OpResult result = runner.Run(op, {OpTensor::Make(DataType::kFloat32, by_rank)});
    INFO(op << ": " << result.status.message());
    REQUIRE(result.status.ok());
    // Equal gradients inside a node count once; a node that heard nothing would keep {3, 0, 0}.
    for (int rank = 0; rank < 6; ++rank)
      CHECK(Decoded(DataType::kFloat32, result, 0, rank) == Values{3, 5, 0});
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

}  // namespace
}  // namespace horon
