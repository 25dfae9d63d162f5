// Reductions over a lane alone, in place and streamed.
#include "runtime/transport/lane.h"

#include <atomic>
#include <limits>
#include <random>
#include <thread>

#include "test/support/catch.h"
#include "test/support/lane_node.h"

namespace horon::test {
namespace {

TEST_CASE("tensors in memory that all members have are reduced in place", "[lane]") {
  for (const int ranks : {2, 3, 4}) {
    LaneNode node(ranks);
    std::atomic<int64_t> wrong{0};
    OnRanks(ranks, [&](int rank) {
      Lane lane(node.Group(rank));
      // Below kInlineBytes nothing is gained; a second tensor shares the bucket with the first.
      wrong += Reduce(lane, node, rank, ranks, {{0, 2000}}, 1) != 0;
      wrong += Reduce(lane, node, rank, ranks, {{0, 2049}}, 2) != 0;
      wrong +=
          Reduce(lane, node, rank, ranks, {{16, 70001}, {100000, 3}, {100016, 180000}}, 3) != 0;
    });
    CHECK(wrong == 0);
    CHECK(node.in_place.value() == 2 * ranks);
  }
}

TEST_CASE("where a member's tensors lie elsewhere all stream", "[lane]") {
  const int ranks = 3;
  LaneNode node(ranks);
  std::atomic<int64_t> wrong{0};
  OnRanks(ranks, [&](int rank) {
    Lane lane(node.Group(rank));
    wrong += Reduce(lane, node, rank, ranks, {{rank == 1 ? -1 : 0, 200000}}, 1) != 0;
    wrong += Reduce(lane, node, rank, ranks, {{rank * 16, 200000}}, 2) != 0;
    wrong += Reduce(lane, node, rank, ranks, {{0, 200000}, {rank == 2 ? -1 : 200000, 9}}, 3) != 0;
  });
  CHECK(wrong == 0);
  CHECK(node.in_place.value() == 0);
}

// Where caches are far, and cores are shared; but nothing of what is in place, or small.
TEST_CASE("ranks that share cores pack past caches that are far", "[lane]") {
  using Limits = std::numeric_limits<int64_t>;
  const int ranks = 3;
  for (const bool crowded : {false, true}) {
    for (const int64_t far_ns : {int64_t{0}, Limits::max()}) {
      LaneNode node(ranks);
      std::atomic<int64_t> wrong{0}, early{0};
      Counter chunks[3];
      OnRanks(ranks, [&](int rank) {
        LaneGroup group = node.Group(rank);
        group.far_ns = far_ns;
        group.crowded = crowded;
        group.past_caches = &chunks[rank];
        Lane lane(std::move(group));
        wrong += Reduce(lane, node, rank, ranks, {{0, 200000}}, 1) != 0;
        wrong += Reduce(lane, node, rank, ranks, {{-1, 1000}}, 2) != 0;
        early += chunks[rank].value();
        for (uint64_t bucket = 3; bucket < 6; ++bucket) {
          const std::vector<Piece> pieces{{-1, 70001}, {-1, 3}, {-1, 80000}};
          wrong += Reduce(lane, node, rank, ranks, pieces, bucket) != 0;
        }
      });
      CHECK(wrong == 0);
      CHECK(early == 0);
      for (const Counter& c : chunks) CHECK((c.value() > 0) == (crowded && far_ns == 0));
    }
  }
}

// Who is in place, and who is fast, is drawn by chance; so are sizes on both sides of a chunk.
TEST_CASE("buckets in place and streamed follow each other in any order", "[lane]") {
  const int ranks = 4, buckets = 300;
  LaneNode node(ranks);
  std::atomic<int64_t> wrong{0};
  std::atomic<int> alike{0};
  OnRanks(ranks, [&](int rank) {
    Lane lane(node.Group(rank));
    std::mt19937 same{7}, mine{static_cast<uint32_t>(rank)};
    for (int b = 0; b < buckets; ++b) {
      const auto count = static_cast<int64_t>(same() % 60000 + 1);
      const bool all = same() % 2 == 0;
      const int64_t offset = all || mine() % 3 != 0 ? 32 : -1;
      if (mine() % 4 == 0) std::this_thread::yield();
      if (all && rank == 0 && count * 4 > 8192) ++alike;
      wrong += Reduce(lane, node, rank, ranks, {{offset, count}}, static_cast<uint64_t>(b)) != 0;
    }
  });
  CHECK(wrong == 0);
  CHECK(node.in_place.value() >= int64_t{ranks} * alike);
}

// Both ranks on this thread, each advanced by hand.
TEST_CASE("a large part is reduced in pieces between which others run", "[lane]") {
  LaneNode node(2);
  Lane first(node.Group(0)), second(node.Group(1));
  const auto begin = [&](Lane& lane, int rank) {
    std::byte* const at = reinterpret_cast<std::byte*>(node.At(rank, 0));
    return std::make_unique<RootTask>(
        lane.Allreduce(lane.TakeTicket(), {{at, at, kRegionFloats}}, {}));
  };
  const auto one = begin(first, 0), other = begin(second, 1);
  one->Advance();  // says that it is there
  int rounds = 0;  // 600 KB of the other's, in pieces of 512 KiB
  const auto reduced = [&] { return node.segment->lane(0, 1).reduced.load(); };
  for (; reduced() == 0; ++rounds) REQUIRE(other->Advance());
  CHECK(rounds == 2);
  while (!one->done() || !other->done()) {
    one->Advance();
    other->Advance();
  }
  CHECK(node.in_place.value() == 2);
}

// All of it in the first chunk, streamed, in place.
TEST_CASE("a member of another bucket is found out before anything is written", "[lane]") {
  const int ranks = 3;
  const int64_t count = GENERATE(100, 200000);
  const bool shared = GENERATE(false, true);
  LaneNode node(ranks);
  std::atomic<int> refused{0}, touched{0};
  OnRanks(ranks, [&](int rank) {
    Lane lane(node.Group(rank));
    std::vector<float> elsewhere(static_cast<size_t>(count));
    float* const at = shared ? node.At(rank, 0) : elsewhere.data();
    for (int64_t i = 0; i < count; ++i) at[i] = Input(rank, i);
    auto* const bytes = reinterpret_cast<std::byte*>(at);
    LaneReduction reduction;
    reduction.bucket = rank == 1 ? 8 : 7;
    const Status status =
        Drive(lane.Allreduce(lane.TakeTicket(), {{bytes, bytes, count}}, reduction));
    refused += status.code() == Code::kInternal;
    for (int64_t i = 0; i < count; ++i) touched += at[i] != Input(rank, i);
  });
  CHECK(refused == ranks);
  CHECK(touched == 0);
}

TEST_CASE("a region is found by what lies in it", "[lane]") {
  SharedRegions regions;
  std::vector<std::byte> memory(1000);
  auto region = std::make_shared<SharedRegion>();
  region->mine = memory.data() + 100;
  region->bytes = 500;
  CHECK(regions.Find(memory.data() + 100, 1) == nullptr);
  regions.Add(region);
  CHECK(regions.Find(memory.data() + 100, 500) == region);
  CHECK(regions.Find(memory.data() + 599, 1) == region);
  CHECK(regions.Find(memory.data() + 100, 501) == nullptr);
  CHECK(regions.Find(memory.data() + 99, 2) == nullptr);
  CHECK(regions.Find(memory.data() + 600, 1) == nullptr);
  regions.Remove(*region);
  CHECK(regions.Find(memory.data() + 100, 1) == nullptr);
}

}  // namespace
}  // namespace horon::test
