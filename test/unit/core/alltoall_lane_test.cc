// alltoall through a lane with thread ranks: who takes it, and that every row arrives where it is
// due, whatever the splits.
#include <algorithm>
#include <memory>

#include "test/support/road.h"

namespace horon {
namespace {

using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

// A byte of the row that `from` sends to `to`, the at-th of all that it sends there.
std::byte ByteOf(int from, int to, int64_t at) {
  return static_cast<std::byte>(at * 7 + at / 251 + 31 * from + 17 * to);
}

// Rows of 3 bytes. Some splits are empty, and some rows stay at home.
struct Splits {
  int ranks;
  int64_t rows;
  int64_t Of(int from, int to) const {
    return (from + 2 * to) % 5 == 4 ? 0 : rows + 1000 * from + 77 * to;
  }
};

void Exchange(Rank& me, const Splits& splits, bool lane, Verdicts& verdicts) {
  constexpr int64_t kRow = 3;
  const int rank = me.rank();
  Request request = Tensor("rows" + std::to_string(splits.rows), "alltoall", {0, kRow},
                           DataType::kUInt8);
  std::vector<std::byte> mine;
  for (int to = 0; to < splits.ranks; ++to) {
    request.splits.push_back(splits.Of(rank, to));
    for (int64_t at = 0; at < splits.Of(rank, to) * kRow; ++at)
      mine.push_back(ByteOf(rank, to, at));
  }
  mine.resize(mine.size() + 5 * kRow);
  request.shape[0] = static_cast<int64_t>(mine.size()) / kRow;
  Counter& swapped = me.runtime().counters()["lane.swapped"];
  for (int step = 0; step < 3; ++step) {
    const int64_t before = swapped.value();
    std::shared_ptr<Work> work;
    const Status status = me.Run(request, mine.data(), nullptr, &work);
    EXPECT(status.ok(), status.message());
    if (!status.ok()) return;
    EXPECT((swapped.value() > before) == lane, lane ? "not over the lane" : "over the lane");
    const std::byte* got = work->outputs()[0].data;
    for (int from = 0; from < splits.ranks; ++from) {
      const int64_t bytes = splits.Of(from, rank) * kRow;
      EXPECT(work->outputs()[0].received_splits[static_cast<size_t>(from)] == bytes / kRow, "rows");
      int64_t wrong = 0;
      for (int64_t at = 0; at < bytes; ++at) wrong += got[at] != ByteOf(from, rank, at);
      EXPECT(wrong == 0, std::to_string(wrong) + " wrong bytes from rank " + std::to_string(from));
      got += bytes;
    }
    // A sum in between: lanes serve both in one order.
    std::vector<float> sum(30000, 1);
    EXPECT(me.Reduce("sum", "sum", sum).ok() && sum.back() == static_cast<float>(me.size()), "sum");
  }
}

TEST_CASE("alltoall of large rows goes through the lane, whatever the splits", "[lane]") {
  struct Case {
    int ranks;
    int64_t rows;
    bool lane;
  };
  for (const Case& c : {Case{2, 60000, false}, Case{2, 100000, true}, Case{2, 3 << 20, true},
                        Case{3, 200000, false}, Case{3, 3 << 20, true}, Case{4, 2 << 20, true}}) {
    INFO(c.ranks << " ranks, " << c.rows << " rows each");
    Verdicts verdicts;
    World(c.ranks).Run([&](Rank& me) { Exchange(me, {c.ranks, c.rows}, c.lane, verdicts); });
    RequireNone(verdicts);
  }
}

TEST_CASE("alltoall goes through no lane where nodes are several or there is none", "[lane]") {
  WorldOptions nodes, without;
  nodes.local_size = 1;
  without.lanes = false;
  for (const WorldOptions& options : {nodes, without}) {
    Verdicts verdicts;
    World(2, options).Run([&](Rank& me) { Exchange(me, {2, 100000}, false, verdicts); });
    RequireNone(verdicts);
  }
}

TEST_CASE("alltoall through the lane with a rank that has joined", "[lane][join]") {
  Verdicts verdicts;
  World(2).Run([&](Rank& me) {
    if (me.rank() == 0) {
      const std::vector<std::byte> mine(2 << 20, std::byte{5});
      std::shared_ptr<Work> work;
      const Request request = Tensor("rows", "alltoall", {2 << 20}, DataType::kUInt8);
      const Status status = me.Run(request, mine.data(), nullptr, &work);
      EXPECT(status.ok(), status.message());
      EXPECT(work->outputs()[0].received_splits == (std::vector<int64_t>{1 << 20, 0}), "rows");
      EXPECT(work->outputs()[0].data[(1 << 20) - 1] == std::byte{5}, "its own rows");
      EXPECT(me.runtime().counters()["lane.swapped"].value() > 0, "not over the lane");
    }
    EXPECT(me.Join().ok(), "join");
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
