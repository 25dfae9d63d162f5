#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>

#include "test/mpi/mpi_world.h"
#include "test/support/catch.h"

namespace horon::test {
namespace {

constexpr DataType kReduced[] = {DataType::kUInt8,  DataType::kInt8,  DataType::kInt16,
                                 DataType::kInt32,  DataType::kInt64, DataType::kFloat32,
                                 DataType::kFloat64};
constexpr ReduceKind kKinds[] = {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax,
                                 ReduceKind::kProduct};

std::vector<int> AllRanks() {
  std::vector<int> ranks(static_cast<size_t>(World().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Element i of rank r: small whole numbers, exact in every type also as a product of four.
int Number(int rank, int64_t i) { return 1 + static_cast<int>((rank * 5 + i) % 3); }

double Expected(ReduceKind kind, const std::vector<int>& ranks, int64_t i) {
  double result = Number(ranks[0], i);
  for (size_t k = 1; k < ranks.size(); ++k) {
    const double next = Number(ranks[k], i);
    if (kind == ReduceKind::kSum) result += next;
    if (kind == ReduceKind::kMin) result = std::min(result, next);
    if (kind == ReduceKind::kMax) result = std::max(result, next);
    if (kind == ReduceKind::kProduct) result *= next;
  }
  return result;
}

// One block, filled, reduced and judged.
class Block {
 public:
  Block(DataType dtype, ReduceKind kind, int64_t count, std::vector<int> ranks)
      : reduction_{nullptr, nullptr, count, dtype, kind, std::move(ranks)},
        bytes_(static_cast<size_t>(count * SizeOf(dtype))) {
    reduction_.input = reduction_.output = bytes_.data();
    ForEach([&](auto& element, int64_t i) {
      element = static_cast<std::decay_t<decltype(element)>>(Number(World().rank(), i));
    });
  }
  const BlockReduction& reduction() const { return reduction_; }
  int64_t wrong() {
    int64_t wrong = 0;
    ForEach([&](auto& element, int64_t i) {
      wrong +=
          static_cast<double>(element) != Expected(reduction_.kind, reduction_.ranks, i) ? 1 : 0;
    });
    return wrong;
  }

 private:
  template <typename F>
  void ForEach(F f) {
    WithType(reduction_.dtype, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
        for (int64_t i = 0; i < reduction_.count; ++i) f(reinterpret_cast<T*>(bytes_.data())[i], i);
      }
    });
  }
  BlockReduction reduction_;
  std::vector<std::byte> bytes_;
};

// Runs the task to its end; its status.
Status Run(Transport& transport, const Block& block) {
  RootTask root(transport.ReduceBlock(block.reduction()));
  const bool ended = Drive(transport, [&] {
    root.Advance();
    return root.done();
  });
  return ended ? root.status() : Status::Internal("the reduction did not end");
}

TEST_CASE("blocks are reduced among all ranks", "[mpi]") {
  Counters counters;
  const auto transport = World().MakeTransport(counters, true);
  int64_t calls = 0;
  for (const DataType dtype : kReduced) {
    for (const ReduceKind kind : kKinds) {
      for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{300001}}) {
        INFO(NameOf(dtype) << ", kind " << static_cast<int>(kind) << ", count " << count);
        Block block(dtype, kind, count, AllRanks());
        REQUIRE(transport->ReducesBlocks(block.reduction()));
        REQUIRE(Run(*transport, block).ok());
        CHECK(block.wrong() == 0);
        CHECK(counters["mpi.collectives"].value() == ++calls);
      }
    }
  }
  CHECK(counters["mpi.messages"].value() == 0);
}

TEST_CASE("a block of more elements than a piece is reduced in several calls", "[mpi]") {
  Counters counters;
  const auto transport = World().MakeTransport(counters, true, 1000);
  for (const DataType dtype : kReduced) {
    Block block(dtype, ReduceKind::kSum, 4001, AllRanks());
    REQUIRE(Run(*transport, block).ok());
    CHECK(block.wrong() == 0);
  }
  CHECK(counters["mpi.collectives"].value() == 5 * static_cast<int64_t>(std::size(kReduced)));
}

TEST_CASE("blocks are reduced among some ranks, also when sets overlap", "[mpi]") {
  Counters counters;
  const auto transport = World().MakeTransport(counters, true);
  const int size = World().size();
  std::vector<std::vector<int>> sets = {{0}};
  if (size >= 2) sets.push_back({size - 1});
  if (size >= 3) sets.push_back({0, size - 1});
  if (size >= 4) sets.insert(sets.end(), {{1, 2}, {0, 1, 3}, {2, 3}});
  for (int round = 0; round < 3;
       ++round) {  // the first makes the communicators, the others use them
    for (const std::vector<int>& ranks : sets) {
      if (std::find(ranks.begin(), ranks.end(), World().rank()) == ranks.end()) continue;
      Block block(DataType::kFloat32, ReduceKind::kSum, 5000, ranks);
      REQUIRE(transport->ReducesBlocks(block.reduction()));
      REQUIRE(Run(*transport, block).ok());
      CHECK(block.wrong() == 0);
    }
  }
  CHECK(Meet());
}

TEST_CASE("several blocks are in flight at once", "[mpi]") {
  Counters counters;
  const auto transport = World().MakeTransport(counters, true);
  std::deque<Block> blocks;
  std::deque<RootTask> roots;
  for (int i = 0; i < 8; ++i) {
    blocks.emplace_back(kReduced[i % 7], kKinds[i % 4], 20000 * (8 - i), AllRanks());
    roots.emplace_back(transport->ReduceBlock(blocks.back().reduction()));
    roots.back().Advance();
  }
  // Finished in another order than started.
  REQUIRE(Drive(*transport, [&] {
    bool done = true;
    for (auto root = roots.rbegin(); root != roots.rend(); ++root) {
      root->Advance();
      done = done && root->done();
    }
    return done;
  }));
  for (size_t i = 0; i < blocks.size(); ++i) {
    CHECK(roots[i].status().ok());
    CHECK(blocks[i].wrong() == 0);
  }
  CHECK(counters["mpi.collectives"].value() == 8);
}

TEST_CASE("progress alone finishes a reduction, and says that something moved", "[mpi]") {
  Counters counters;
  const auto transport = World().MakeTransport(counters, true);
  Block block(DataType::kInt32, ReduceKind::kSum, 100000, AllRanks());
  RootTask root(transport->ReduceBlock(block.reduction()));
  root.Advance();
  // Only what is said is looked at. Other things move too: what a test before this one has left.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  while (!root.done() && std::chrono::steady_clock::now() < deadline) {
    const auto progress = transport->Progress();
    REQUIRE(progress.ok());
    if (progress.value()) root.Advance();
  }
  CHECK(root.done());
  CHECK(block.wrong() == 0);
}

TEST_CASE("an empty block makes no call", "[mpi]") {
  Counters counters;
  const auto transport = World().MakeTransport(counters, true);
  Block block(DataType::kFloat64, ReduceKind::kSum, 0, AllRanks());
  CHECK(Run(*transport, block).ok());
  CHECK(counters["mpi.collectives"].value() == 0);
}

TEST_CASE("types that MPI does not add are refused", "[mpi]") {
  Counters counters;
  const auto transport = World().MakeTransport(counters, true);
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16, DataType::kBool}) {
    Block block(dtype, ReduceKind::kSum, 10, AllRanks());
    CHECK_FALSE(transport->ReducesBlocks(block.reduction()));
    CHECK(Run(*transport, block).code() == Code::kUnsupported);
  }
  Block block(DataType::kFloat32, ReduceKind::kSum, 10, {0, World().size()});
  CHECK_FALSE(transport->ReducesBlocks(block.reduction()));
}

// It may have died: only the launcher knows, so whoever waits for it must be able to hear of that.
TEST_CASE("a member that does not come blocks nobody", "[mpi]") {
  const std::unique_ptr<MpiWorld> life = OpenAnotherWorld();  // which has no sets yet
  REQUIRE(life != nullptr);
  Counters counters;
  const auto transport = life->MakeTransport(counters, true);
  const bool member = World().size() > 1 && World().rank() < 2;
  Block block(DataType::kInt32, ReduceKind::kSum, 100, {0, 1});
  std::optional<RootTask> root;
  if (member && World().rank() == 0) {
    REQUIRE(transport->Prepare({0, 1}).ok());
    root.emplace(transport->ReduceBlock(block.reduction()));
    for (int round = 0; round < 1000; ++round) {
      root->Advance();
      REQUIRE(transport->Progress().ok());
      REQUIRE_FALSE(root->done());
    }
  }
  REQUIRE(Meet());  // the other one comes now
  if (member && !root) root.emplace(transport->ReduceBlock(block.reduction()));
  if (member) {
    REQUIRE(Drive(*transport, [&] {
      root->Advance();
      return root->done();
    }));
    CHECK(root->status().ok());
    CHECK(block.wrong() == 0);
  }
  CHECK(Meet());
}

}  // namespace
}  // namespace horon::test
