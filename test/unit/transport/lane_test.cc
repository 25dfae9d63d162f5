// Lanes alone: ranks are threads, the segment is heap, the regions are mapped in this process.
#include "runtime/transport/lane.h"

#include <atomic>
#include <random>
#include <thread>

#include "test/support/catch.h"

namespace horon::test {
namespace {

constexpr int64_t kRegionFloats = 300000;

// Memory of all ranks that each of them knows.
struct Node {
  explicit Node(int ranks) {
    SegmentShape shape = SegmentShape::For(ranks, 4096, 64 << 10);
    shape.row_bytes = 512 << 10;
    segment = SharedSegment::InProcess(shape).value();
    for (int r = 0; r < ranks; ++r)
      copies.push_back(SharedMemory::Make(kRegionFloats * 4, "lane test").value());
    for (int r = 0; r < ranks; ++r) {
      regions.push_back(std::make_shared<SharedRegions>());
      auto region = std::make_shared<SharedRegion>();
      region->id = 1;
      region->mine = copies[static_cast<size_t>(r)]->data();
      region->bytes = kRegionFloats * 4;
      region->copies = copies;
      regions.back()->Add(std::move(region));
    }
  }
  LaneGroup Group(int me) {
    LaneGroup group{segment, regions[static_cast<size_t>(me)], 0, {}, me, &in_place, nullptr};
    for (size_t r = 0; r < copies.size(); ++r) group.members.push_back(static_cast<int>(r));
    return group;
  }
  float* At(int rank, int64_t offset) {
    return reinterpret_cast<float*>(copies[static_cast<size_t>(rank)]->data()) + offset;
  }

  std::shared_ptr<SharedSegment> segment;
  std::vector<std::shared_ptr<SharedMemory>> copies;
  std::vector<std::shared_ptr<SharedRegions>> regions;
  Counter in_place;
};

// Runs `body(rank)` on a thread for each rank.
void OnRanks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

Status Drive(Task task) {
  RootTask root(std::move(task));
  while (!root.done())
    if (!root.Advance()) std::this_thread::yield();
  return root.status();
}

// What a rank reduces: `count` values in the region at `offset`, or elsewhere where that is -1.
struct Piece {
  int64_t offset, count;
};

// Each element is rank + 1 + its place; sums over all ranks are exact.
float Input(int rank, int64_t i) { return static_cast<float>(rank + 1 + i % 100); }
float Sum(int ranks, int64_t i) {
  return static_cast<float>(ranks * (ranks + 1) / 2 + ranks * (i % 100));
}

// One bucket of one rank; the number of wrong elements.
int64_t Reduce(Lane& lane, Node& node, int rank, int ranks, const std::vector<Piece>& pieces,
               uint64_t bucket) {
  std::vector<std::vector<float>> elsewhere(pieces.size());
  std::vector<LaneTensor> tensors;
  std::vector<float*> values;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [offset, count] = pieces[i];
    if (offset < 0) elsewhere[i].resize(static_cast<size_t>(count));
    float* const at = offset < 0 ? elsewhere[i].data() : node.At(rank, offset);
    for (int64_t j = 0; j < count; ++j) at[j] = Input(rank, j);
    values.push_back(at);
    tensors.push_back({reinterpret_cast<std::byte*>(at), reinterpret_cast<std::byte*>(at), count});
  }
  LaneReduction reduction;
  reduction.bucket = bucket;
  const uint64_t ticket = lane.TakeTicket();
  if (!Drive(lane.Allreduce(ticket, tensors, reduction)).ok()) return -1;
  int64_t wrong = 0;
  for (size_t i = 0; i < pieces.size(); ++i)
    for (int64_t j = 0; j < pieces[i].count; ++j) wrong += values[i][j] != Sum(ranks, j);
  return wrong;
}

TEST_CASE("tensors in memory that all members have are reduced in place", "[lane]") {
  for (const int ranks : {2, 3, 4}) {
    Node node(ranks);
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
  Node node(ranks);
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

// Who is in place, and who is fast, is drawn by chance; so are sizes on both sides of a chunk.
TEST_CASE("buckets in place and streamed follow each other in any order", "[lane]") {
  const int ranks = 4, buckets = 300;
  Node node(ranks);
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
  Node node(2);
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

// Rank r gives its partner rank + 1 + 10 * place of what the partner keeps. The partner looks at
// all of it `looks` times, and in the end gives back the double, or nothing. The number of wrong
// elements.
int64_t SwapRow(Lane& lane, int rank, int partner, const std::vector<int64_t>& counts, int looks,
                bool back, uint64_t bucket) {
  LaneRow row{partner, bucket, {}};
  // Of an odd tensor the lower of two partners gives one more.
  const auto part = [&](int of, int64_t count) {
    return count / 2 + (of < partner || of < rank) * (count % 2);
  };
  std::vector<std::vector<float>> given, returned, seen;
  for (const int64_t count : counts) {
    const int64_t gives = part(rank, count), keeps = part(partner, count);
    given.emplace_back(static_cast<size_t>(gives));
    for (int64_t j = 0; j < gives; ++j)
      given.back()[static_cast<size_t>(j)] = static_cast<float>(rank + 1 + 10 * j);
    returned.emplace_back(static_cast<size_t>(gives), -1.0F);
    seen.emplace_back(static_cast<size_t>(keeps));
    row.parts.push_back({nullptr, nullptr, gives, keeps, (count + 1) / 2});
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    row.parts[i].given = reinterpret_cast<const std::byte*>(given[i].data());
    row.parts[i].back = reinterpret_cast<std::byte*>(returned[i].data());
  }
  int64_t wrong = 0;
  const uint64_t ticket = lane.TakeTicket();
  wrong += !Drive(lane.Await(ticket)).ok();
  LaneSwap swap = lane.MakeSwap(
      4, row, looks > 0 ? LaneSwap::Passes::kSeveral : LaneSwap::Passes::kOne);
  for (int pass = 0; pass <= looks; ++pass) {
    std::vector<int64_t> upto(counts.size());
    const LaneSwap::Meet meet = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
      const int64_t keeps = row.parts[i].keeps;
      wrong += at % kDotBlock != 0 || (count % kDotBlock != 0 && at + count != keeps);
      wrong += pass == 0 && at != upto[i];
      upto[i] += count;
      auto* const values = reinterpret_cast<float*>(theirs);
      for (int64_t j = 0; j < count; ++j) {
        wrong += values[j] != static_cast<float>(partner + 1 + 10 * (at + j));
        if (pass == looks && back) values[j] *= 2;
      }
    };
    const auto kind = pass < looks ? LaneSwap::Pass::kMore
                      : back       ? LaneSwap::Pass::kLastBack
                                   : LaneSwap::Pass::kLast;
    wrong += !Drive(lane.Swap(swap, kind, meet)).ok();
    for (size_t i = 0; i < counts.size(); ++i) wrong += upto[i] != row.parts[i].keeps;
  }
  lane.Served();
  for (size_t i = 0; i < counts.size(); ++i)
    for (size_t j = 0; j < given[i].size(); ++j)
      wrong += returned[i][j] != (back ? 2 * given[i][j] : -1.0F);
  return wrong;
}

// Rows that the four slots of 64 KiB hold, or the 512 KiB for rows, and longer ones; beside sums on
// the same lane.
TEST_CASE("rows are swapped in pairs, in several passes", "[lane]") {
  const std::vector<std::vector<int64_t>> rows = {
      {1}, {0, 2, 0}, {2048}, {2049, 3, 4096}, {131072}, {131073}, {200001, 1, 77777}, {}};
  for (const int ranks : {2, 4, 8}) {
    Node node(ranks);
    std::atomic<int64_t> wrong{0};
    OnRanks(ranks, [&](int rank) {
      Lane lane(node.Group(rank));
      uint64_t bucket = 0;
      for (int distance = 1; distance < ranks; distance *= 2)
        for (const auto& row : rows)
          for (const int looks : {0, 1, 2})
            for (const bool back : {true, false}) {
              wrong += SwapRow(lane, rank, rank ^ distance, row, looks, back, ++bucket);
              if (bucket % 5 == 0)
                wrong += Reduce(lane, node, rank, ranks, {{-1, 50000}}, ++bucket);
            }
    });
    CHECK(wrong == 0);
  }
}

// One row fills all slots; backwards its first chunk is the last that is looked at.
TEST_CASE("a row stays in its slots until all have gone through it to and fro", "[lane]") {
  constexpr int64_t kRow = 4 * (64 << 10) / 4;
  Node node(2);
  const LaneGroup groups[] = {node.Group(0), node.Group(1)};
  std::vector<float> old_values(kRow, 1), new_values(kRow, 2);
  const auto row = [&](int rank, std::vector<float>& values) {
    auto* const at = reinterpret_cast<std::byte*>(values.data());
    return LaneRow{1 - rank, 0, {{at, at, kRow, kRow, kRow}}};
  };
  float expected = 1;
  int64_t wrong = 0, seen = 0;
  const auto look = [&](size_t, int64_t, std::byte* theirs, int64_t count) {
    for (int64_t j = 0; j < count; ++j)
      wrong += reinterpret_cast<const float*>(theirs)[j] != expected;
    seen += count;
  };
  const auto nothing = [](size_t, int64_t, std::byte*, int64_t) {};
  const auto go_on = [](LaneSwap& swap) {
    while (!swap.done() && swap.Step()) continue;
  };
  const LaneRow old_rows[] = {row(0, old_values), row(1, old_values)};
  const LaneRow new_rows[] = {row(0, new_values), row(1, new_values)};
  LaneSwap fast(groups[0], 0, 4, old_rows[0], LaneSwap::Passes::kSeveral);
  LaneSwap slow(groups[1], 0, 4, old_rows[1], LaneSwap::Passes::kSeveral);
  fast.Begin(LaneSwap::Pass::kMore, nothing, nullptr);
  slow.Begin(LaneSwap::Pass::kMore, nothing, nullptr);
  while (!fast.done() || !slow.done()) {
    go_on(fast);
    go_on(slow);
  }
  fast.Begin(LaneSwap::Pass::kLast, nothing, nullptr);
  go_on(fast);
  REQUIRE(fast.done());
  LaneSwap next_fast(groups[0], fast.end(), 4, new_rows[0], LaneSwap::Passes::kOne);
  next_fast.Begin(LaneSwap::Pass::kLast, look, nullptr);

  slow.Begin(LaneSwap::Pass::kLast, look, nullptr);
  while (!slow.done()) {
    REQUIRE(slow.Step());
    go_on(next_fast);
  }
  CHECK(wrong == 0);
  CHECK(seen == kRow);
  expected = 2;
  LaneSwap next_slow(groups[1], slow.end(), 4, new_rows[1], LaneSwap::Passes::kOne);
  next_slow.Begin(LaneSwap::Pass::kLast, look, nullptr);
  while (!next_fast.done() || !next_slow.done()) {
    go_on(next_fast);
    go_on(next_slow);
  }
  CHECK(wrong == 0);
  CHECK(seen == 3 * kRow);
}

TEST_CASE("a member that swaps another row is found out", "[lane]") {
  Node node(2);
  std::atomic<int> refused{0};
  OnRanks(2, [&](int rank) {
    Lane lane(node.Group(rank));
    std::vector<float> values(4096);
    auto* const at = reinterpret_cast<std::byte*>(values.data());
    LaneRow row{1 - rank, static_cast<uint64_t>(rank), {{at, at, 4096, 4096, 4096}}};
    refused -= !Drive(lane.Await(lane.TakeTicket())).ok();
    LaneSwap swap = lane.MakeSwap(4, row, LaneSwap::Passes::kOne);
    const auto nothing = [](size_t, int64_t, std::byte*, int64_t) {};
    const Status status = Drive(lane.Swap(swap, LaneSwap::Pass::kLast, nothing));
    refused += status.code() == Code::kInternal;
  });
  CHECK(refused == 2);
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
