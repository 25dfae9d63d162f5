// Rows that members of a lane show each other, beside sums on the same lane.
#include "runtime/transport/lane_swap.h"

#include <atomic>
#include <cstring>
#include <limits>

#include "test/support/catch.h"
#include "test/support/lane_node.h"

namespace horon::test {
namespace {

const int64_t kFarNs = Config{}.shm_far_ns;

// Rank r gives its partner rank + 1 + 10 * place of what the partner keeps. The partner looks at
// all of it `looks` times, and in the end gives back the double, or nothing. The number of wrong
// elements.
int64_t SwapRow(Lane& lane, int rank, int partner, const std::vector<int64_t>& counts, int looks,
                bool back, uint64_t bucket) {
  LaneRow row{partner, bucket, {}};
  // Of an odd tensor the lower of two partners gives one more.
  const auto part = [&](int of, int64_t count) -> int64_t {
    if (partner == rank) return 0;
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

// The root gives bytes that tell it, the bucket and the place; the number of wrong ones here.
int64_t TakeRow(Lane& lane, int rank, int root, const std::vector<int64_t>& sizes,
                uint64_t bucket) {
  const auto value = [&](size_t i, size_t at) {
    return static_cast<std::byte>(7 * static_cast<uint64_t>(root) + 5 * bucket + 3 * i + at % 251);
  };
  LaneRow row{root, bucket, {}};
  std::vector<std::vector<std::byte>> bytes;
  for (const int64_t size : sizes) {
    bytes.emplace_back(static_cast<size_t>(size));
    for (size_t at = 0; at < bytes.back().size() && rank == root; ++at)
      bytes.back()[at] = value(bytes.size() - 1, at);
    row.parts.push_back({bytes.back().data(), nullptr, rank == root ? size : 0,
                         rank == root ? 0 : size, size});
  }
  int64_t wrong = !Drive(lane.Await(lane.TakeTicket())).ok();
  LaneSwap swap = lane.MakeSwap(1, row, LaneSwap::Passes::kOne);
  const LaneSwap::Meet take = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
    std::memcpy(bytes[i].data() + at, theirs, static_cast<size_t>(count));
  };
  wrong += !Drive(lane.Swap(swap, LaneSwap::Pass::kLast, take)).ok();
  lane.Served();
  for (size_t i = 0; i < bytes.size(); ++i)
    for (size_t at = 0; at < bytes[i].size(); ++at) wrong += bytes[i][at] != value(i, at);
  return wrong;
}

// Rows that the four slots of 64 KiB hold, or the 512 KiB for rows, and longer ones; beside sums on
// the same lane.
TEST_CASE("rows are swapped in pairs, in several passes, beside who has no partner", "[lane]") {
  const std::vector<std::vector<int64_t>> rows = {
      {1}, {0, 2, 0}, {2048}, {2049, 3, 4096}, {131072}, {131073}, {200001, 1, 77777}, {}};
  for (const int ranks : {2, 3, 4, 5, 8}) {
    LaneNode node(ranks);
    std::atomic<int64_t> wrong{0};
    OnRanks(ranks, [&](int rank) {
      Lane lane(node.Group(rank));
      uint64_t bucket = 0;
      for (int distance = 1; distance < ranks; distance *= 2) {
        const int partner = (rank ^ distance) < ranks ? rank ^ distance : rank;
        for (const auto& row : rows)
          for (const int looks : {0, 1, 2})
            for (const bool back : {true, false}) {
              wrong += SwapRow(lane, rank, partner, row, looks, back, ++bucket);
              if (bucket % 5 == 0)
                wrong += Reduce(lane, node, rank, ranks, {{-1, 50000}}, ++bucket);
            }
      }
    });
    CHECK(wrong == 0);
  }
}

// Where caches are far: packed past them, into the same slots.
TEST_CASE("rows are packed past caches that are far, and only past those", "[lane]") {
  using Limits = std::numeric_limits<int64_t>;
  for (const int64_t far_ns : {int64_t{0}, Limits::max()}) {
    LaneNode node(2);
    std::atomic<int64_t> wrong{0};
    Counter chunks[2];
    OnRanks(2, [&](int rank) {
      LaneGroup group = node.Group(rank);
      group.far_ns = far_ns;
      group.past_caches = &chunks[rank];
      Lane lane(std::move(group));
      uint64_t bucket = 0;
      for (const auto& row : {std::vector<int64_t>{2049, 3, 4096}, {131073}, {200001, 1, 77777}})
        for (const int looks : {0, 1})
          wrong += SwapRow(lane, rank, rank ^ 1, row, looks, true, ++bucket);
      for (const int root : {0, 1}) wrong += TakeRow(lane, rank, root, {65535, 2, 65536}, ++bucket);
    });
    CHECK(wrong == 0);
    for (const Counter& c : chunks) CHECK((c.value() > 0) == (far_ns == 0));
  }
}

// A line in my own cache says nothing of how far others are.
TEST_CASE("only lines that have changed tell how far they come", "[lane]") {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::min();
  LaneDistance any(2, kAny);
  std::atomic<uint64_t> beat{0};
  any.Look(1, beat);
  CHECK_FALSE(any.far());
  beat = 1;
  any.Look(1, beat);
  CHECK(any.far());
}

// As measured on cores of two complexes: three to eight of ten looks are near there, one of a
// hundred is far between cores that share a cache.
TEST_CASE("few near looks do not make caches near, nor one far look far", "[lane]") {
  LaneDistance distance(2, kFarNs);
  for (int i = 0; i < 1000; ++i) {
    distance.Saw(i % 100 == 50 ? 180 : 15);
    CHECK_FALSE(distance.far());
  }
  int near = 0;
  for (int i = 0; i < 1000; ++i) {
    distance.Saw(i % 3 == 0 ? 120 : 15);
    if (i > 8) near += !distance.far();
  }
  CHECK(near == 0);
  for (int i = 0; i < 20; ++i) distance.Saw(15);
  CHECK_FALSE(distance.far());
}

// A row that one member gives, as in a broadcast: all others are its partners, and it has none.
TEST_CASE("a member's row comes to all others, in any number of tensors", "[lane]") {
  const std::vector<std::vector<int64_t>> rows = {
      {}, {0}, {1}, {0, 3, 0, 5}, {65536}, {65535, 2, 65536}, {1'000'003}};
  for (const int ranks : {2, 3, 5}) {
    LaneNode node(ranks);
    std::atomic<int64_t> wrong{0};
    OnRanks(ranks, [&](int rank) {
      Lane lane(node.Group(rank));
      uint64_t bucket = 0;
      for (int root = 0; root < ranks; ++root)
        for (const auto& row : rows) {
          wrong += TakeRow(lane, rank, root, row, ++bucket);
          if (bucket % 3 == 0) wrong += Reduce(lane, node, rank, ranks, {{-1, 50000}}, ++bucket);
        }
    });
    CHECK(wrong == 0);
  }
}

// Each is on this thread, advanced by hand; a sanitizer sees who still touches what is gone.
TEST_CASE("who leaves a row in the middle holds the others up, and is left alone", "[lane]") {
  constexpr int64_t kRow = 20 * (64 << 10);
  for (const int rounds : {0, 1, 2}) {
    for (const int leaves : {0, 1}) {
      LaneNode node(2);
      std::vector<std::unique_ptr<Lane>> lanes;
      std::vector<std::vector<std::byte>> memory(2, std::vector<std::byte>(kRow));
      std::vector<LaneRow> rows;
      std::vector<std::unique_ptr<LaneSwap>> swaps;
      std::vector<std::unique_ptr<RootTask>> tasks;
      rows.push_back({0, 1, {{memory[0].data(), nullptr, kRow, 0, kRow}}});
      rows.push_back({0, 1, {{nullptr, nullptr, 0, kRow, kRow}}});
      const auto take = [&](size_t, int64_t at, std::byte* theirs, int64_t count) {
        std::memcpy(memory[1].data() + at, theirs, static_cast<size_t>(count));
      };
      for (size_t rank : {0, 1}) {
        lanes.push_back(std::make_unique<Lane>(node.Group(static_cast<int>(rank))));
        swaps.push_back(std::make_unique<LaneSwap>(
            lanes[rank]->MakeSwap(1, rows[rank], LaneSwap::Passes::kOne)));
        tasks.push_back(std::make_unique<RootTask>(
            lanes[rank]->Swap(*swaps[rank], LaneSwap::Pass::kLast, take)));
      }
      for (int i = 0; i < rounds; ++i)
        for (const auto& task : tasks) task->Advance();
      const auto left = static_cast<size_t>(leaves);
      tasks[left].reset();
      memory[left] = {};
      RootTask& other = *tasks[1 - left];
      other.Advance();
      CHECK_FALSE(other.Advance());
      CHECK_FALSE(other.done());
    }
  }
}

// One row fills all slots; backwards its first chunk is the last that is looked at.
TEST_CASE("a row stays in its slots until all have gone through it to and fro", "[lane]") {
  constexpr int64_t kRow = 4 * (64 << 10) / 4;
  LaneNode node(2);
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
  LaneDistance distances[] = {{2, kFarNs}, {2, kFarNs}};
  const LaneRow old_rows[] = {row(0, old_values), row(1, old_values)};
  const LaneRow new_rows[] = {row(0, new_values), row(1, new_values)};
  LaneSwap fast(groups[0], distances[0], 0, 4, old_rows[0], LaneSwap::Passes::kSeveral);
  LaneSwap slow(groups[1], distances[1], 0, 4, old_rows[1], LaneSwap::Passes::kSeveral);
  fast.Begin(LaneSwap::Pass::kMore, nothing, nullptr);
  slow.Begin(LaneSwap::Pass::kMore, nothing, nullptr);
  while (!fast.done() || !slow.done()) {
    go_on(fast);
    go_on(slow);
  }
  fast.Begin(LaneSwap::Pass::kLast, nothing, nullptr);
  go_on(fast);
  REQUIRE(fast.done());
  LaneSwap next_fast(groups[0], distances[0], fast.end(), 4, new_rows[0], LaneSwap::Passes::kOne);
  next_fast.Begin(LaneSwap::Pass::kLast, look, nullptr);

  slow.Begin(LaneSwap::Pass::kLast, look, nullptr);
  while (!slow.done()) {
    REQUIRE(slow.Step());
    go_on(next_fast);
  }
  CHECK(wrong == 0);
  CHECK(seen == kRow);
  expected = 2;
  LaneSwap next_slow(groups[1], distances[1], slow.end(), 4, new_rows[1], LaneSwap::Passes::kOne);
  next_slow.Begin(LaneSwap::Pass::kLast, look, nullptr);
  while (!next_fast.done() || !next_slow.done()) {
    go_on(next_fast);
    go_on(next_slow);
  }
  CHECK(wrong == 0);
  CHECK(seen == 3 * kRow);
}

TEST_CASE("a member that swaps another row is found out", "[lane]") {
  LaneNode node(2);
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

}  // namespace
}  // namespace horon::test
