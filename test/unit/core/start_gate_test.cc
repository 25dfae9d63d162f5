// The gate of a locked schedule's batches: nobody goes through before all have started, whatever
// comes when; inside a node without a message.
#include "runtime/core/start_gate.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <random>
#include <vector>

#include "test/support/catch.h"
#include "test/support/loop_transport.h"

namespace horon {
namespace {

// A gate for each rank.
class Gates {
 public:
  explicit Gates(const Topology& topology, uint64_t seed = 1) : world_(topology, seed) {
    std::vector<std::shared_ptr<SharedSegment>> nodes;
    for (int node = 0; node < topology.nodes(); ++node) {
      const auto ranks = static_cast<int>(topology.members(node).size());
      nodes.push_back(SharedSegment::InProcess(SegmentShape::For(ranks, 0, 4096)).value());
    }
    for (int rank = 0; rank < topology.size(); ++rank) {
      const auto node = static_cast<size_t>(topology.node_of(rank));
      counters_.push_back(std::make_unique<Counters>());
      gates_.push_back(std::make_unique<StartGate>(
          world_.fabric(rank), topology.local_size(rank) > 1 ? nodes[node] : nullptr,
          *counters_.back()));
    }
  }
  ~Gates() {
    for (const auto& gate : gates_) gate->Close(0);
  }
  Gates(const Gates&) = delete;
  Gates& operator=(const Gates&) = delete;

  int size() const { return static_cast<int>(gates_.size()); }
  StartGate& operator[](int rank) { return *gates_[static_cast<size_t>(rank)]; }
  Status Advance(int rank) {
    HORON_TRY(world_.fabric(rank).route[static_cast<size_t>(rank)]->Progress().status());
    return (*this)[rank].Advance().status();
  }
  // Everybody, often enough for all that can come.
  Status AdvanceAll() {
    for (int i = 0; i < 200; ++i) {
      for (int rank = 0; rank < size(); ++rank) HORON_TRY(Advance(rank));
    }
    return Status::Ok();
  }
  int64_t messages(int rank) {
    return (*counters_[static_cast<size_t>(rank)])["schedule.messages"].value();
  }

 private:
  test::LoopWorld world_;
  std::vector<std::unique_ptr<Counters>> counters_;
  std::vector<std::unique_ptr<StartGate>> gates_;
};

TEST_CASE("nobody passes the gate of a batch that somebody has not started") {
  constexpr uint64_t kBatches = 6, kSchedule = 40, kPlan = 7;
  for (const auto& [size, local] : std::vector<std::pair<int, int>>{
           {1, 1}, {2, 2}, {3, 3}, {2, 1}, {5, 1}, {4, 2}, {5, 2}, {8, 2}, {9, 3}, {7, 4}}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      INFO(size << " ranks, " << local << " a node, seed " << seed);
      const Topology topology = Topology::Blocks(size, local);
      Gates gates(topology, seed);
      std::mt19937_64 random(seed);
      std::vector<uint64_t> started(static_cast<size_t>(size), 0);
      const auto least = [&] { return *std::min_element(started.begin(), started.end()); };
      for (int step = 0; step < 4000 && !gates[0].Passed({kSchedule, kPlan, kBatches}); ++step) {
        const auto rank = static_cast<int>(random() % static_cast<uint64_t>(size));
        uint64_t& mine = started[static_cast<size_t>(rank)];
        if (mine < kBatches && random() % 4 == 0) gates[rank].Start({kSchedule, kPlan, ++mine});
        REQUIRE(gates.Advance(rank).ok());
        for (int r = 0; r < size; ++r) {
          if (least() < kBatches) REQUIRE(!gates[r].Passed({kSchedule, kPlan, least() + 1}));
        }
      }
      REQUIRE(least() == kBatches);
      REQUIRE(gates.AdvanceAll().ok());
      const int rounds = std::bit_width(static_cast<unsigned>(topology.nodes() - 1));
      for (int r = 0; r < size; ++r) {
        REQUIRE(gates[r].Passed({kSchedule, kPlan, kBatches}));
        const int most = topology.local_rank(r) == 0 ? rounds * static_cast<int>(kBatches) : 0;
        REQUIRE(gates.messages(r) <= most);
      }
    }
  }
}

TEST_CASE("what was said of a schedule that was left opens no gate of the next one") {
  for (const int local : {1, 2, 4}) {
    INFO(local << " ranks a node");
    Gates gates(Topology::Blocks(4, local));
    for (int rank = 0; rank < 4; ++rank) gates[rank].Start({1, 1, 9});
    REQUIRE(gates.AdvanceAll().ok());
    for (int rank = 0; rank < 4; ++rank) {
      REQUIRE(gates[rank].Passed({1, 1, 9}));
      gates[rank].Start({1, 1, 20});  // which all take back
      REQUIRE(gates.Advance(rank).ok());
    }
    for (int rank = 0; rank < 4; ++rank) gates[rank].Close(9);
    for (int rank = 0; rank < 3; ++rank) gates[rank].Start({30, 2, 10});
    REQUIRE(gates.AdvanceAll().ok());
    for (int rank = 0; rank < 4; ++rank) REQUIRE(!gates[rank].Passed({30, 2, 10}));
    gates[3].Start({30, 2, 10});
    REQUIRE(gates.AdvanceAll().ok());
    for (int rank = 0; rank < 4; ++rank) REQUIRE(gates[rank].Passed({30, 2, 10}));
  }
}

TEST_CASE("ranks that run other schedules at one decision hear of each other") {
  for (const int local : {1, 2}) {
    INFO(local << " ranks a node");
    Gates gates(Topology::Blocks(2, local));
    gates[0].Start({5, 1, 3});
    gates[1].Start({5, 2, 3});
    const Status status = gates.AdvanceAll();
    REQUIRE(status.code() == Code::kInternal);
    REQUIRE(status.message() == "rank 1 runs another schedule of tensors than this rank");
  }
}

}  // namespace
}  // namespace horon
