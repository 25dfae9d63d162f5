// The gate of a locked schedule's batches: nobody goes through before all have started, whatever
// comes when; inside a node without a message. Small batches come with the words.
#include "runtime/core/start_gate.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
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
    for (const auto& gate : gates_) gate->Stop();
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

// What a rank gives: whole numbers, so that sums are exact in every order.
std::vector<double> Given(int rank, uint64_t number, int count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>((rank + 3) * 1000) + static_cast<double>(number * 10 + i);
  return values;
}

double Sum(int size, uint64_t number, int i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank)
    sum += Given(rank, number, i + 1)[static_cast<size_t>(i)];
  return sum;
}

// A rank's batch with cargo: one tensor of 1, 2, ... elements, reduced in place.
struct Loaded {
  Loaded(int rank, uint64_t batch)
      : number(batch), count(static_cast<int>(batch % 5) + 1), values(Given(rank, batch, count)) {
    auto* const data = reinterpret_cast<std::byte*>(values.data());
    segment.input = segment.output = data;
    segment.count = count;
    cargo.emplace(std::span<const Segment>(&segment, 1),
                  Reduction{DataType::kFloat64, ReduceKind::kSum, 1.0}, 1.0,
                  Cargo::Limits{4096, 4096}, nullptr);
  }
  bool Untouched(int rank) const { return values == Given(rank, number, count); }
  bool Right(int size) const {
    for (int i = 0; i < count; ++i)
      if (values[static_cast<size_t>(i)] != Sum(size, number, i)) return false;
    return true;
  }
  uint64_t number;
  int count;
  std::vector<double> values;
  Segment segment;
  std::optional<Cargo> cargo;
};

bool Carries(uint64_t number) { return number % 7 != 3 && number % 7 != 4; }

// One schedule after the other. In each every rank starts some of its batches, as many as it likes,
// until they are told to leave it: what not all have started is taken back, what all have comes.
TEST_CASE("a small batch comes with the word, all of it or none of it") {
  for (const auto& [size, local] : std::vector<std::pair<int, int>>{
           {1, 1}, {2, 2}, {3, 3}, {2, 1}, {3, 1}, {5, 1}, {4, 2}, {5, 2}, {8, 2}, {9, 3}, {7, 4}}) {
    for (uint64_t seed = 1; seed <= 25; ++seed) {
      INFO(size << " ranks, " << local << " a node, seed " << seed);
      Gates gates(Topology::Blocks(size, local), seed);
      std::mt19937_64 random(seed);
      std::vector<std::deque<Loaded>> loaded(static_cast<size_t>(size));
      std::vector<uint64_t> started(static_cast<size_t>(size), 0);
      const auto at = [](int rank) { return static_cast<size_t>(rank); };
      const auto least = [&] { return *std::min_element(started.begin(), started.end()); };
      const auto look = [&](int rank) {
        for (Loaded& batch : loaded[at(rank)]) {
          if (batch.cargo->Ready()) {
            REQUIRE(batch.number <= least());
            REQUIRE(batch.Right(size));
          } else {
            REQUIRE(batch.Untouched(rank));
          }
        }
      };
      for (uint64_t schedule = 10; schedule < 15; ++schedule) {
        const uint64_t batches = least() + 1 + random() % 12;
        const auto steps = static_cast<int>(random() % 300);
        for (int step = 0; step < steps; ++step) {
          const auto rank = static_cast<int>(random() % static_cast<uint64_t>(size));
          uint64_t& mine = started[at(rank)];
          if (mine < batches && random() % 4 == 0) {
            const Locked batch{schedule, 7, ++mine};
            if (Carries(mine)) {
              loaded[at(rank)].emplace_back(rank, mine);
              gates[rank].Start(batch, &*loaded[at(rank)].back().cargo);
            } else {
              gates[rank].Start(batch);
            }
          }
          REQUIRE(gates.Advance(rank).ok());
          look(rank);
        }
        const uint64_t last = least();
        for (int rank = 0; rank < size; ++rank) {
          auto& mine = loaded[at(rank)];
          while (!mine.empty() && mine.back().number > last) mine.pop_back();
          started[at(rank)] = last;
          gates[rank].Close(last);
          for (uint64_t i = random() % 8; i > 0; --i) {
            const auto other = static_cast<int>(random() % static_cast<uint64_t>(size));
            REQUIRE(gates.Advance(other).ok());
            look(other);
          }
        }
      }
      REQUIRE(gates.AdvanceAll().ok());
      for (int rank = 0; rank < size; ++rank) {
        look(rank);
        for (Loaded& batch : loaded[at(rank)]) REQUIRE(batch.cargo->Ready());
      }
    }
  }
}

// Of three tensors of 900 elements in all.
TEST_CASE("of a batch that does not fit the beginning comes with the word, and nothing else") {
  constexpr int64_t kElement = sizeof(double), kAll = 900 * kElement;
  for (const auto& [limits, comes] : std::vector<std::pair<Cargo::Limits, int>>{
           {{kAll, 8}, 900}, {{kAll - 1, 1000}, 125}, {{kAll - 1, 1007}, 125}, {{800, 800}, 100}}) {
    INFO("limits " << limits.whole << ", " << limits.beginning);
    constexpr int kRanks = 3;
    Gates gates(Topology::Blocks(kRanks, 1));
    std::vector<std::vector<double>> values;
    std::vector<std::vector<Segment>> tensors;
    std::deque<Cargo> cargo;
    for (int rank = 0; rank < kRanks; ++rank) {
      values.push_back(Given(rank, 1, 900));
      auto* at = reinterpret_cast<std::byte*>(values.back().data());
      auto& mine = tensors.emplace_back();
      for (const int64_t count : {100, 500, 300}) {
        mine.emplace_back().input = at;
        mine.back().output = at;
        mine.back().count = count;
        at += count * kElement;
      }
      cargo.emplace_back(mine, Reduction{DataType::kFloat64, ReduceKind::kSum, 1.0}, 1.0, limits,
                         nullptr);
      CHECK(cargo.back().whole() == (comes == 900));
      CHECK(cargo.back().bytes() == comes * kElement);
      gates[rank].Start({3, 7, 1}, &cargo.back());
    }
    REQUIRE(gates.AdvanceAll().ok());
    for (int rank = 0; rank < kRanks; ++rank) {
      REQUIRE(cargo[static_cast<size_t>(rank)].Ready());
      const std::vector<double> mine = Given(rank, 1, 900);
      int right = 0;
      for (int i = 0; i < 900; ++i) {
        const auto k = static_cast<size_t>(i);
        right += values[static_cast<size_t>(rank)][k] == (i < comes ? Sum(kRanks, 1, i) : mine[k]);
      }
      CHECK(right == 900);
    }
  }
}

TEST_CASE("a gate that was stopped owes nothing") {
  Gates gates(Topology::Blocks(3, 1));
  Loaded batch(0, 1);
  gates[0].Start({3, 7, 1}, &*batch.cargo);
  for (int i = 0; i < 10; ++i) REQUIRE(gates.Advance(0).ok());
  REQUIRE(gates[0].owes());  // to the node that is two places on, what comes from the one before
  gates[0].Stop();
  CHECK_FALSE(gates[0].owes());
  CHECK(batch.Untouched(0));
}

// As a rank does that leaves the job: with what it waited for, and owing nothing.
TEST_CASE("who has all, and owes nothing, is not needed any more") {
  constexpr uint64_t kSchedule = 3, kBatches = 4;
  for (const auto& [size, local] :
       std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {5, 1}, {4, 2}, {7, 3}}) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      INFO(size << " ranks, " << local << " a node, seed " << seed);
      Gates gates(Topology::Blocks(size, local), seed);
      std::mt19937_64 random(seed);
      std::vector<std::deque<Loaded>> loaded(static_cast<size_t>(size));
      const auto at = [](int rank) { return static_cast<size_t>(rank); };
      for (int rank = 0; rank < size; ++rank) {
        for (uint64_t number = 1; number <= kBatches; ++number) {
          loaded[at(rank)].emplace_back(rank, number);
          gates[rank].Start({kSchedule, 7, number}, &*loaded[at(rank)].back().cargo);
        }
      }
      const auto has_all = [&](int rank) {
        return std::all_of(loaded[at(rank)].begin(), loaded[at(rank)].end(),
                           [](Loaded& batch) { return batch.cargo->Ready(); });
      };
      std::vector<bool> gone(static_cast<size_t>(size), false);
      for (int step = 0; step < 20'000; ++step) {
        const auto rank = static_cast<int>(random() % static_cast<uint64_t>(size));
        if (gone[at(rank)]) continue;
        REQUIRE(gates.Advance(rank).ok());
        gone[at(rank)] = has_all(rank) && !gates[rank].owes();
      }
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE(gone[at(rank)]);
        for (const Loaded& batch : loaded[at(rank)]) REQUIRE(batch.Right(size));
      }
    }
  }
}

}  // namespace
}  // namespace horon
