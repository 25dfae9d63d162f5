#include <algorithm>
#include <cstring>

#include "runtime/transport/collectives.h"
#include "test/support/catch.h"
#include "test/support/loop_transport.h"
#include "test/support/reference.h"

namespace horon {
namespace {

using test::Bytes;
using test::Decode;
using test::Encode;
using test::LoopWorld;
using test::Near;
using test::Values;

constexpr int64_t kCounts[] = {0, 1, 3, 17, 1000, 5000};
constexpr int64_t kManyChunks = 700'001;  // more than a chunk (128 KiB) in each of five parts

void RequireOk(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) {
    INFO(status.message());
    REQUIRE(status.ok());
  }
}

std::vector<Bytes> Inputs(DataType dtype, int ranks, int64_t count) {
  std::vector<Bytes> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.push_back(Encode(dtype, test::SmallValues(dtype, rank, count)));
  return all;
}

// Each rank's block after an allreduce of `blocks`.
std::vector<Bytes> Allreduced(LoopWorld& world, std::vector<Bytes> blocks, int64_t count,
                              Reduction reduction) {
  RequireOk(world.Run([&](Communicator& comm) {
    return Allreduce(comm, blocks[static_cast<size_t>(comm.rank())].data(), count, reduction);
  }));
  return blocks;
}

void CheckAllreduce(const Topology& topology, DataType dtype, int64_t count, uint64_t seed) {
  LoopWorld world(topology, seed);
  std::vector<Values> inputs;
  for (int rank = 0; rank < world.size(); ++rank)
    inputs.push_back(test::SmallValues(dtype, rank, count));
  for (const ReduceKind kind :
       {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax, ReduceKind::kProduct}) {
    for (const double scale : {1.0, 1.0 / world.size()}) {
      if (!Supports(kind, dtype, scale != 1.0)) continue;
      const auto results =
          Allreduced(world, Inputs(dtype, world.size(), count), count, {dtype, kind, scale});
      const Values reference = test::Reduced(kind, dtype, inputs, 1.0, scale);
      INFO(NameOf(dtype) << " x " << count << " on " << world.size() << " ranks, "
                         << topology.nodes() << " nodes, kind " << static_cast<int>(kind)
                         << " scale " << scale);
      REQUIRE(Near(dtype, Decode(dtype, results[0]), reference));
      for (const Bytes& result : results) REQUIRE(result == results[0]);

      const auto blocks = Inputs(dtype, world.size(), count);
      std::vector<Bytes> outputs(blocks.size(), Bytes(results[0].size()));
      RequireOk(world.Run([&](Communicator& comm) {
        const auto me = static_cast<size_t>(comm.rank());
        return Allreduce(comm, blocks[me].data(), outputs[me].data(), count, {dtype, kind, scale});
      }));
      REQUIRE(blocks == Inputs(dtype, world.size(), count));
      for (const Bytes& output : outputs) REQUIRE(output == results[0]);
    }
  }
}

TEST_CASE("allreduce: every dtype, kind and layout against the serial sum", "[collectives]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t count : kCounts) CheckAllreduce(topology, dtype, count, 7);
    }
  }
}

TEST_CASE("allreduce of many chunks", "[collectives]") {
  for (const Topology& topology :
       {Topology::OneNode(2), Topology::Blocks(3, 1), Topology::Blocks(5, 3)}) {
    for (const DataType dtype : {DataType::kUInt8, DataType::kFloat16, DataType::kFloat64}) {
      CheckAllreduce(topology, dtype, kManyChunks, 3);
    }
  }
}

TEST_CASE("a sum has the same bits whatever the timing and the slicing", "[collectives]") {
  // Values for which the order of additions shows in the last bits.
  constexpr int64_t kCount = 100'000, kSlice = 700;
  for (const Topology& topology : test::TestTopologies()) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < topology.size(); ++rank) {
      inputs.push_back(Encode(DataType::kFloat32, test::Fractions(rank, kCount)));
    }
    Bytes first;
    for (const uint64_t seed : {1, 2, 3}) {
      LoopWorld world(topology, seed);
      const auto results = Allreduced(world, inputs, kCount, {});
      if (first.empty()) first = results[0];
      for (const Bytes& result : results) REQUIRE(result == first);
    }
    LoopWorld world(topology, 4);
    constexpr int64_t kBegin = 31'007 * 4;  // a slice alone gives the bits that it has in the whole
    std::vector<Bytes> slices;
    for (const Bytes& input : inputs)
      slices.emplace_back(input.begin() + kBegin, input.begin() + kBegin + kSlice * 4);
    for (const Bytes& result : Allreduced(world, slices, kSlice, {})) {
      REQUIRE(std::memcmp(result.data(), first.data() + kBegin, kSlice * 4) == 0);
    }
  }
}

TEST_CASE("a transport that reduces blocks is used where all ranks see it alike", "[collectives]") {
  for (const Topology& topology : test::TestTopologies()) {
    LoopWorld world(topology, 5, /*blocks=*/true);
    std::vector<Values> inputs;
    for (int rank = 0; rank < world.size(); ++rank) {
      inputs.push_back(test::SmallValues(DataType::kInt32, rank, 1000));
    }
    const Reduction reduction{DataType::kInt32, ReduceKind::kSum, 0.5};
    const auto results =
        Allreduced(world, Inputs(DataType::kInt32, world.size(), 1000), 1000, reduction);
    const Values reference = test::Reduced(ReduceKind::kSum, DataType::kInt32, inputs, 1.0, 0.5);
    for (const Bytes& result : results) REQUIRE(Decode(DataType::kInt32, result) == reference);
    const bool flat = topology.nodes() == 1 || topology.nodes() == world.size();
    if (world.size() > 1 && flat) {
      REQUIRE(world.net().block_reductions() == 1);
      REQUIRE(world.net().messages_sent(0) == 0);
    }
    if (!flat)
      REQUIRE(world.net().block_reductions() == 0);  // parts of a group have no agreed order
  }
}

TEST_CASE("reduce-scatter leaves each part with its owner and the rest alone", "[collectives]") {
  for (const Topology& topology : test::TestTopologies()) {
    const int size = topology.size();
    for (const int64_t count : {0L, 1L, 3L, 17L, 1000L, 300'007L}) {
      LoopWorld world(topology, 11);
      const auto parts = NearlyEqualParts(count, size, size);
      auto blocks = Inputs(DataType::kInt32, size, count);
      const auto before = blocks;
      RequireOk(world.Run([&](Communicator& comm) {
        const auto me = static_cast<size_t>(comm.rank());
        std::byte* const block = blocks[me].data();
        return ReduceScatter(comm, block, parts, block + 4 * parts[me].begin, {DataType::kInt32});
      }));
      std::vector<Values> inputs;
      for (const Bytes& block : before) inputs.push_back(Decode(DataType::kInt32, block));
      const Values sum = test::Reduced(ReduceKind::kSum, DataType::kInt32, inputs, 1.0, 1.0);
      for (size_t rank = 0; rank < blocks.size(); ++rank) {
        Values expected = inputs[rank];
        const auto begin = static_cast<std::ptrdiff_t>(parts[rank].begin);
        std::copy_n(sum.begin() + begin, parts[rank].count, expected.begin() + begin);
        REQUIRE(Decode(DataType::kInt32, blocks[rank]) == expected);
        if (count > 1000 && size > 1) {
          REQUIRE(world.net().bytes_sent(static_cast<int>(rank)) ==
                  (count - parts[rank].count) * 4);
        }
      }
    }
  }
}

Task Nothing() { co_return Status::Ok(); }

TEST_CASE("allreduce writes nothing before every rank has sent", "[collectives]") {
  constexpr int64_t kFew = 900, kMany = 100'000;  // in one step, and in two
  for (const Topology& topology : test::TestTopologies()) {
    for (const int64_t count : {kFew, kMany}) {
      for (int late = 0; late < topology.size() && topology.size() > 1; ++late) {
        LoopWorld world(topology, 31);
        const auto before = Inputs(DataType::kFloat32, world.size(), count);
        auto blocks = before;
        const auto statuses = world.Run([&](Communicator& comm) {
          if (comm.rank() == late) return Nothing();
          return Allreduce(comm, blocks[static_cast<size_t>(comm.rank())].data(), count, {});
        });
        INFO("rank " << late << " of " << world.size() << " on " << topology.nodes() << " nodes");
        for (int rank = 0; rank < world.size(); ++rank)
          REQUIRE(statuses[static_cast<size_t>(rank)].ok() == (rank == late));
        REQUIRE(blocks == before);
      }
    }
  }
}

TEST_CASE("a group of some ranks", "[collectives]") {
  LoopWorld world(Topology::Blocks(5, 2), 23);
  std::vector<Bytes> blocks = Inputs(DataType::kInt64, 5, 2000);
  const auto before = blocks;
  const std::vector<int> group{1, 2, 3};
  RequireOk(world.Run(group, [&](Communicator& comm) {
    return Allreduce(comm, blocks[static_cast<size_t>(comm.global(comm.rank()))].data(), 2000,
                     {DataType::kInt64});
  }));
  std::vector<Values> inputs;
  for (int rank : group)
    inputs.push_back(Decode(DataType::kInt64, before[static_cast<size_t>(rank)]));
  const Values sum = test::Reduced(ReduceKind::kSum, DataType::kInt64, inputs, 1.0, 1.0);
  for (int rank : group)
    REQUIRE(Decode(DataType::kInt64, blocks[static_cast<size_t>(rank)]) == sum);
  REQUIRE(blocks[0] == before[0]);
  REQUIRE(blocks[4] == before[4]);
}

TEST_CASE("a failed post ends the collective with its sentence and takes every transfer back",
          "[collectives]") {
  for (int64_t post = 0;; ++post) {
    LoopWorld world(Topology::Blocks(5, 3), 29);
    world.net().FailPostAfter(post);
    auto blocks = Inputs(DataType::kFloat32, 5, 100'000);
    const auto statuses = world.Run([&](Communicator& comm) {
      return Allreduce(comm, blocks[static_cast<size_t>(comm.rank())].data(), 100'000, {});
    });
    REQUIRE(world.net().lent() == 0);
    const auto failed = std::count_if(statuses.begin(), statuses.end(), [](const Status& status) {
      return status.code() == Code::kUnavailable &&
             status.message().find(" is gone") != std::string::npos;
    });
    if (failed == 0) {  // the whole collective has fewer posts than that
      RequireOk(statuses);
      REQUIRE(post > 30);
      break;
    }
    REQUIRE(failed == 1);
  }
}

}  // namespace
}  // namespace horon
