// The collectives that move bytes; collectives_reduce_test.cc has those that reduce.
#include "runtime/transport/collectives.h"

#include <algorithm>

#include "test/support/catch.h"
#include "test/support/loop_transport.h"
#include "test/support/reference.h"

namespace horon {
namespace {

using test::Bytes;
using test::LoopWorld;

void RequireOk(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) {
    INFO(status.message());
    REQUIRE(status.ok());
  }
}

TEST_CASE("parts: the first ones have one element more", "[collectives]") {
  REQUIRE(PartBegin(10, 4, 0) == 0);
  REQUIRE(PartBegin(10, 4, 1) == 3);
  REQUIRE(PartBegin(10, 4, 2) == 6);
  REQUIRE(PartBegin(10, 4, 3) == 8);
  REQUIRE(PartBegin(10, 4, 4) == 10);
  constexpr int64_t kHuge = int64_t{1} << 61;
  REQUIRE(PartBegin(kHuge + 1, 3, 3) == kHuge + 1);
  const auto parts = NearlyEqualParts(5, 2, 4);  // two owners of four
  REQUIRE(
      (parts[0].count == 3 && parts[1].count == 2 && parts[2].count == 0 && parts[3].count == 0));
}

TEST_CASE("allgather of ragged parts", "[collectives]") {
  for (const Topology& topology : test::TestTopologies()) {
    LoopWorld world(topology, 13);
    std::vector<Part> parts;
    int64_t total = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      const int64_t bytes = rank == 1 ? 0 : 1000 * rank + 7;
      parts.push_back({total, bytes});
      total += bytes;
    }
    Bytes whole(static_cast<size_t>(total));
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::byte>(i * 31 + 5);
    std::vector<Bytes> blocks(static_cast<size_t>(world.size()), Bytes(whole.size()));
    for (size_t rank = 0; rank < blocks.size(); ++rank) {
      const auto begin = static_cast<std::ptrdiff_t>(parts[rank].begin);
      std::copy_n(whole.begin() + begin, parts[rank].count, blocks[rank].begin() + begin);
    }
    RequireOk(world.Run([&](Communicator& comm) {
      return Allgather(comm, blocks[static_cast<size_t>(comm.rank())].data(), parts);
    }));
    for (const Bytes& block : blocks) REQUIRE(block == whole);
  }
}

TEST_CASE("broadcast: every root, several spans, more chunks than the window", "[collectives]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (int root = 0; root < topology.size(); ++root) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{3'500'001}}) {
        if (bytes > 1000 && root != topology.size() - 1) continue;
        LoopWorld world(topology, 17);
        std::vector<Bytes> blocks(static_cast<size_t>(world.size()), Bytes(bytes));
        Bytes& source = blocks[static_cast<size_t>(root)];
        for (size_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(i * 131 + i / 257);
        std::vector<std::vector<Span>> spans;
        for (Bytes& block : blocks) {
          const auto third = static_cast<int64_t>(bytes / 3);
          spans.push_back({{block.data(), third},
                           {nullptr, 0},
                           {block.data() + third, static_cast<int64_t>(bytes) - third}});
        }
        RequireOk(world.Run([&](Communicator& comm) {
          return Broadcast(comm, spans[static_cast<size_t>(comm.rank())], root);
        }));
        for (const Bytes& block : blocks) REQUIRE(block == source);
      }
    }
  }
}

TEST_CASE("alltoall of uneven blocks", "[collectives]") {
  for (const Topology& topology : test::TestTopologies()) {
    LoopWorld world(topology, 19);
    const auto size = static_cast<size_t>(world.size());
    const auto bytes_between = [](size_t from, size_t to) {
      return from == to + 1 ? 0 : 10 * from + to + 1;
    };
    std::vector<std::vector<Bytes>> out(size), in(size);
    std::vector<std::vector<Span>> send(size), recv(size);
    for (size_t me = 0; me < size; ++me) {
      for (size_t peer = 0; peer < size; ++peer) {
        out[me].emplace_back(bytes_between(me, peer), static_cast<std::byte>(16 * me + peer));
        in[me].emplace_back(bytes_between(peer, me));
        send[me].push_back({out[me][peer].data(), static_cast<int64_t>(out[me][peer].size())});
        recv[me].push_back({in[me][peer].data(), static_cast<int64_t>(in[me][peer].size())});
      }
    }
    RequireOk(world.Run([&](Communicator& comm) {
      const auto me = static_cast<size_t>(comm.rank());
      return Alltoall(comm, send[me], recv[me]);
    }));
    for (size_t from = 0; from < size; ++from) {
      for (size_t to = 0; to < size; ++to) REQUIRE(in[to][from] == out[from][to]);
    }
  }
}

Task CountIn(Communicator& comm, int& arrived, std::vector<int>& seen) {
  ++arrived;
  HORON_CO_TRY(co_await Barrier(comm));
  seen.push_back(arrived);
  co_return Status::Ok();
}

TEST_CASE("nobody leaves a barrier before everybody has come", "[collectives]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      LoopWorld world(topology, seed);
      int arrived = 0;
      std::vector<int> seen;
      RequireOk(world.Run([&](Communicator& comm) { return CountIn(comm, arrived, seen); }));
      REQUIRE(seen == std::vector<int>(static_cast<size_t>(world.size()), world.size()));
    }
  }
}

}  // namespace
}  // namespace horon
