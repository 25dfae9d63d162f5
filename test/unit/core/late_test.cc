// The whole road with thread ranks: one is too late for some rounds of negotiated gossip. It comes
// when the others are through with them, so only the limit lets them go on.
#include <latch>
#include <memory>
#include <optional>
#include <thread>

#include "test/support/gpu_world.h"
#include "test/unit/ops/gossip/graphs.h"

namespace horon {
namespace {

using test::GpuRank;
using test::GpuWorld;
using test::Layouts;
using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

constexpr int kRanks = 4, kLate = 3;
constexpr std::chrono::milliseconds kPatience{600};

WorldOptions Impatient(WorldOptions options) {
  const auto before = options.configure;
  options.configure = [before](Config& c) {
    before(c);
    c.gossip_time = kPatience;
  };
  return options;
}

// Lets the late rank through when the others have what they wait for.
class Lateness {
 public:
  // `round`, as each rank goes through it; what it does must not end before its result is there.
  template <typename F>
  void Late(const Rank& me, F&& round) {
    if (me.rank() == kLate) AwaitOthers();
    round();
    if (me.rank() != kLate) Done();
  }
  void AwaitOthers() { others_done_.wait(); }
  void Done() { others_done_.count_down(); }

 private:
  std::latch others_done_{kRanks - 1};
};

// What a rank begins with, of a tensor of its own size.
std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  const auto times = static_cast<size_t>(rank + 1);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i + 3) % 11 * times);
  return values;
}

// By rank, after the rounds of the graph that are not left out.
std::vector<std::vector<float>> Predicted(const gossip::Graph& graph, int rounds,
                                          const std::vector<int>& left_out, size_t count) {
  std::vector<std::vector<float>> all;
  for (int r = 0; r < kRanks; ++r) all.push_back(Values(r, count));
  for (int round = 0; round < rounds; ++round) {
    if (std::find(left_out.begin(), left_out.end(), round) != left_out.end()) continue;
    const auto before = all;
    for (int r = 0; r < kRanks; ++r) {
      const gossip::Row row = gossip::RowOf(graph.At(round), r);
      for (size_t i = 0; i < count; ++i) {
        double sum = row.self * before[static_cast<size_t>(r)][i];
        for (const gossip::Neighbor& from : row.from)
          sum += from.weight * before[static_cast<size_t>(from.rank)][i];
        all[static_cast<size_t>(r)][i] = static_cast<float>(sum);
      }
    }
  }
  return all;
}

bool Near(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::abs(x - y) <= 1e-5f * std::max(1.0f, std::abs(y));
  });
}

constexpr const char* kGraph = "graph=one_peer_exponential";

TEST_CASE("rounds that a rank misses are left out, and the next are those of the graph", "[late]") {
  const gossip::Graph graph = gossip::MakeGraph(kGraph, kRanks);
  for (const WorldOptions& options : Layouts()) {
    INFO("local size " << options.local_size << (options.lanes ? "" : ", without lanes"));
    World world(kRanks, Impatient(options));
    Verdicts verdicts;
    Lateness thrice;
    world.Run([&](Rank& me) {
      std::vector<std::vector<float>> tensors;
      for (const size_t count : {1, 40000, 7}) tensors.push_back(Values(me.rank(), count));
      const auto round = [&] {
        std::vector<Request> requests;
        std::vector<const void*> inputs;
        std::vector<void*> outputs;
        for (auto& values : tensors) {
          requests.push_back(Tensor("w" + std::to_string(values.size()),
                                    std::string("gossip:") + kGraph,
                                    {static_cast<int64_t>(values.size())}));
          inputs.push_back(values.data());
          outputs.push_back(values.data());
        }
        auto work = me.SubmitGroup(std::move(requests), inputs, outputs, "model");
        EXPECT(work.ok() && me.Wait(*work.value()).ok(), "a round failed");
      };
      round();
      // An odd number: the graph repeats after two rounds, and those left out count as well.
      thrice.Late(me, [&] { round(), round(), round(); });
      std::vector<float> sum(5, 1);  // other collectives go on in between
      EXPECT(me.Reduce("sum", "sum", sum).ok() && sum[4] == kRanks, "allreduce");
      round();
      for (const auto& values : tensors) {
        const auto all = Predicted(graph, 5, {1, 2, 3}, values.size());
        EXPECT(Near(values, all[static_cast<size_t>(me.rank())]), "values after five rounds");
      }
      EXPECT(me.runtime().counters()["gossip.kept"].value() == 9, "the counter");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("what is left out is scaled, also into outputs of the work", "[late]") {
  World world(kRanks, Impatient({}));
  Verdicts verdicts;
  Lateness once;
  world.Run([&](Rank& me) {
    const std::vector<float> mine = Values(me.rank(), 100);
    Request request = Tensor("w", "gossip:graph=ring", {100});
    request.prescale = 3;
    request.postscale = 0.5;
    std::shared_ptr<Work> work;
    once.Late(me, [&] { EXPECT(me.Run(request, mine.data(), nullptr, &work).ok(), "failed"); });
    const auto* got = reinterpret_cast<const float*>(work->outputs()[0].data);
    for (size_t i = 0; i < mine.size(); ++i) EXPECT(got[i] == mine[i] * 1.5f, "not scaled");
  });
  RequireNone(verdicts);
}

TEST_CASE("exact averages beside gossip are left out, and other averages wait", "[late]") {
  for (const WorldOptions& options : Layouts()) {
    World world(kRanks, Impatient(options));
    Verdicts verdicts;
    Lateness once;
    world.Run([&](Rank& me) {
      std::vector<float> x(40000, static_cast<float>(me.rank()));
      once.Late(me, [&] {
        EXPECT(me.Reduce("x", "average:late=keep", x).ok(), "left out");
        EXPECT(x == std::vector<float>(40000, static_cast<float>(me.rank())), "it keeps x");
      });
      EXPECT(me.runtime().counters()["gossip.kept"].value() == 1, "counted");
      EXPECT(me.Reduce("x", "average:late=keep", x).ok(), "with all");
      EXPECT(x == std::vector<float>(40000, 1.5F), "the mean");
      if (me.rank() == kLate) std::this_thread::sleep_for(2 * kPatience);
      EXPECT(me.Reduce("y", "average", x).ok(), "a plain average waits");
      EXPECT(me.runtime().counters()["gossip.kept"].value() == 1, "and is not left out");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("calls with neighbors of their own, and rounds between nodes, are left out", "[late]") {
  WorldOptions options;
  options.local_size = 2;
  World world(kRanks, Impatient(options));
  Verdicts verdicts;
  Lateness lists, nodes;
  world.Run([&](Rank& me) {
    std::vector<float> values = Values(me.rank(), 50);
    const std::vector<float> mine = values;
    Request pairs = Tensor("pairs", "neighbor_allreduce", {50});
    const int other = me.rank() ^ 1;
    pairs.splits = {me.rank(), 1, other, other};
    pairs.weights = {0.5, 0.5, 1};
    lists.Late(me, [&] { EXPECT(me.Run(pairs, values.data(), values.data()).ok(), "pairs"); });
    EXPECT(values == mine, "pairs changed something");
    EXPECT(me.Run(pairs, values.data(), values.data()).ok(), "pairs again");
    const std::vector<float> theirs = Values(other, 50);
    EXPECT(std::abs(values[1] - (mine[1] + theirs[1]) / 2) < 1e-5f, "pairs did not average");
    values = mine;
    const Request across = Tensor("nodes", "gossip:graph=complete,hierarchical=1", {50});
    nodes.Late(me, [&] { EXPECT(me.Run(across, values.data(), values.data()).ok(), "nodes"); });
    EXPECT(values == mine, "nodes changed something");
    EXPECT(me.Run(across, values.data(), values.data()).ok(), "nodes again");
    const float each = mine[1] / static_cast<float>(me.rank() + 1);
    EXPECT(std::abs(values[1] - 2.5f * each) < 1e-4f, "not the mean");
  });
  RequireNone(verdicts);
}

TEST_CASE("a process set may begin with a round that is left out", "[late]") {
  for (const WorldOptions& options : Layouts()) {
    World world(kRanks, Impatient(options));
    Verdicts verdicts;
    Lateness once;
    world.Run([&](Rank& me) {
      const Result<int> set = me.AddProcessSet({1, 2, kLate});
      EXPECT(set.ok(), "no set");
      std::vector<float> values = Values(me.rank(), 3000);
      const std::vector<float> mine = values;
      Request request = Tensor("w", "gossip:graph=complete", {3000});
      request.process_set = set.value();
      const auto round = [&] {
        if (me.rank() > 0) EXPECT(me.Run(request, values.data(), values.data()).ok(), "failed");
      };
      once.Late(me, round);
      EXPECT(values == mine, "changed");
      round();
      if (me.rank() > 0) EXPECT(std::abs(values[0] - 9) < 1e-5f, "not the mean");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("who has joined counts the rounds that are left out", "[late]") {
  const gossip::Graph graph = gossip::MakeGraph(kGraph, kRanks);
  constexpr int kJoins = 1;
  for (const WorldOptions& options : Layouts()) {
    World world(kRanks, Impatient(options));
    Verdicts verdicts;
    Lateness once;
    world.Run([&](Rank& me) {
      std::vector<float> values = Values(me.rank(), 50);
      const Request request = Tensor("w", std::string("gossip:") + kGraph, {50});
      const auto round = [&] {
        EXPECT(me.Run(request, values.data(), values.data()).ok(), "a round failed");
      };
      round();
      if (me.rank() != kJoins) {
        if (me.rank() == kLate) once.AwaitOthers();
        round();
        if (me.rank() != kLate) once.Done();
      } else {
        once.Done();
      }
      EXPECT(me.Join().ok(), "join");
      round();
      const auto all = Predicted(graph, 3, {1}, 50);
      EXPECT(Near(values, all[static_cast<size_t>(me.rank())]), "values after three rounds");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("means of many rounds, and what neighbors gather, fail without a late rank", "[late]") {
  World world(kRanks, Impatient({}));
  Verdicts verdicts;
  Lateness mean, rows;
  world.Run([&](Rank& me) {
    std::vector<float> values = Values(me.rank(), 9);
    const std::vector<float> mine = values;
    const auto expect = [&](const Status& status) {
      EXPECT(status.code() == Code::kLate &&
                 status.message().find("rank 3 has not come") != std::string::npos,
             "says '" + status.message() + "'");
    };
    mean.Late(me, [&] {
      expect(me.Run(Tensor("mean", "gossip:graph=ring,rounds=3,late=fail", {9}), values.data(),
                    values.data()));
    });
    EXPECT(values == mine, "changed");
    Request gather = Tensor("rows", "neighbor_allgather", {9});
    const int before = (me.rank() + kRanks - 1) % kRanks, after = (me.rank() + 1) % kRanks;
    gather.splits = {me.rank(), 1, before, after};
    rows.Late(me, [&] { expect(me.Run(gather, values.data(), nullptr)); });
  });
  RequireNone(verdicts);
}

TEST_CASE("any op fails without a late rank where its spec says so, and is whole again", "[late]") {
  World world(kRanks, Impatient({}));
  Verdicts verdicts;
  Lateness late[4];
  world.Run([&](Rank& me) {
    const char* const specs[] = {"sum:late=fail", "max:late=fail", "average:late=fail",
                                 "barrier:late=fail"};
    for (size_t i = 0; i < std::size(specs); ++i) {
      const std::string spec = specs[i];
      const Shape shape = spec.starts_with("barrier") ? Shape{0} : Shape{9};
      std::vector<float> values = Values(me.rank(), 9);
      const std::vector<float> mine = values;
      const auto run = [&] {
        return me.Run(Tensor("x", spec, shape), values.data(), values.data());
      };
      late[i].Late(me, [&] {
        const Status status = run();
        EXPECT(status.code() == Code::kLate &&
                   status.message().find("rank 3 has not come") != std::string::npos,
               spec + " says '" + status.message() + "'");
      });
      EXPECT(values == mine, spec + " has changed something");
      // Also as often as it takes to be locked: then nobody would be late for it.
      for (int again = 0; again < 8; ++again) EXPECT(run().ok(), spec + " with all");
    }
    EXPECT(me.runtime().counters()["schedule.locks"].value() == 0, "locked");
  });
  RequireNone(verdicts);
}

TEST_CASE("on GPUs a round that a rank misses is left out as well", "[late][gpu]") {
  for (auto layout : {test::LayoutOf(kRanks, 0, ""), test::LayoutOf(kRanks, 2, "")}) {
    layout.configure_rank = [](int, Config& c) { c.gossip_time = kPatience; };
    GpuWorld world(layout);
    Lateness first, later;
    world.Run([&](GpuRank& rank) {
      const int me = rank.me().rank();
      const auto bytes = test::Counting(10 * me, 5000);
      std::byte* const tensor = rank.Put(bytes);
      Request request = GpuRank::Of("w", "gossip:graph=complete", DataType::kFloat32, {5000});
      const auto round = [&](std::byte* output) {
        auto work = rank.Submit(request, tensor, output);
        world.Expect(work.ok() && rank.Synchronize(*work.value()).ok(), "a round failed");
        return work.value();
      };
      first.Late(rank.me(), [&] { round(tensor); });  // before the ranks have met on GPUs
      world.Expect(rank.Get(tensor, 5000 * 4) == bytes, "changed");
      round(tensor);
      const auto mean = test::Counting(15, 5000);
      world.Expect(rank.Get(tensor, 5000 * 4) == mean, "not the mean");
      request.prescale = 2;
      later.Late(rank.me(), [&] {
        const auto work = round(nullptr);
        const auto doubled = test::Decode(DataType::kFloat32,
                                          rank.Get(work->outputs()[0].data, 5000 * 4));
        world.Expect(doubled[7] == 2 * (15 + 7), "not scaled");
      });
    });
    world.Check();
  }
}

}  // namespace
}  // namespace horon
