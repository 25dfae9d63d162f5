// The whole road with thread ranks: results, order, fusing and remembering.
#include <algorithm>
#include <atomic>

#include "test/support/road.h"

namespace horon {
namespace {

using test::Layouts;
using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

TEST_CASE("every rank gets the sum, in every layout, from 1 to 5 ranks") {
  for (const WorldOptions& layout : Layouts()) {
    for (int n = 1; n <= 5; ++n) {
      Verdicts verdicts;
      World(n, layout).Run([&](Rank& me) {
        for (int step = 0; step < 20; ++step) {
          std::vector<float> values(static_cast<size_t>(step * 997 + 1),
                                    static_cast<float>(me.rank() + step));
          const Status status =
              me.Reduce("x", "sum", values);  // the shape changes: the cache must notice
          EXPECT(status.ok(), status.message());
          const float want = static_cast<float>(n * (n - 1) / 2 + n * step);
          EXPECT(std::all_of(values.begin(), values.end(), [&](float v) { return v == want; }),
                 "wrong sum in step " + std::to_string(step));
        }
      });
      RequireNone(verdicts);
    }
  }
}

TEST_CASE("ranks may submit in any order; many tensors are in flight at once") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(4, layout).Run([&](Rank& me) {
      constexpr int kTensors = 60;
      std::vector<std::vector<float>> tensors(kTensors);
      for (int step = 0; step < 5; ++step) {
        std::vector<std::shared_ptr<Work>> works(kTensors);
        for (int i = 0; i < kTensors; ++i) {
          const int t = (i * 7 + me.rank() * 13) % kTensors;
          tensors[static_cast<size_t>(t)].assign(static_cast<size_t>(1 + t * t * 5),
                                                 static_cast<float>(me.rank() + t));
          auto& values = tensors[static_cast<size_t>(t)];
          auto work = me.Submit(
              Tensor("t" + std::to_string(t), "average", {static_cast<int64_t>(values.size())}),
              values.data(), values.data());
          EXPECT(work.ok(), work.status().message());
          if (work.ok()) works[static_cast<size_t>(t)] = work.value();
        }
        for (int t = 0; t < kTensors; ++t) {
          const Status status = me.Wait(*works[static_cast<size_t>(t)]);
          EXPECT(status.ok(), status.message());
          EXPECT(tensors[static_cast<size_t>(t)].back() == 1.5f + static_cast<float>(t),
                 "wrong average of tensor " + std::to_string(t));
        }
      }
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("100 small tensors share one bucket; with threshold 0 each has its own") {
  for (const bool fused : {true, false}) {
    WorldOptions options;
    if (!fused) options.configure = [](Config& c) { c.fusion_bytes = 0; };
    World world(2, options);
    Verdicts verdicts;
    world.Run([&](Rank& me) {
      std::vector<std::vector<float>> tensors(100, std::vector<float>(10, 1));
      std::vector<Request> requests;
      std::vector<const void*> inputs;
      std::vector<void*> outputs;
      for (int i = 0; i < 100; ++i) {
        requests.push_back(Tensor("t" + std::to_string(i), "sum", {10}));
        inputs.push_back(tensors[static_cast<size_t>(i)].data());
        outputs.push_back(tensors[static_cast<size_t>(i)].data());
      }
      auto work = me.SubmitGroup(requests, inputs, outputs, "all");
      EXPECT(me.Wait(*work.value()).ok() && tensors[99][9] == 2, "wrong sum");
      EXPECT(me.runtime().counters()["executor.buckets"].value() == (fused ? 1 : 100),
             "wrong number of buckets");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("the scratch of many buckets at once is that of the bytes under way") {
  WorldOptions options;
  options.configure = [](Config& c) { c.fusion_bytes = 0; };
  constexpr int kTensors = 12;
  constexpr int64_t kCount = 4 << 20;  // 16 MiB: two may be under way, with 8 MiB of scratch each
  World world(2, options);
  Verdicts verdicts;
  world.Run([&](Rank& me) {
    std::vector<std::vector<float>> tensors(kTensors, std::vector<float>(kCount, 3));
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kTensors; ++i) {
      auto& values = tensors[static_cast<size_t>(i)];
      const Request request = Tensor(std::to_string(i), "adasum", {kCount});
      works.push_back(me.Submit(request, values.data(), values.data()).value());
    }
    for (auto& work : works) EXPECT(me.Wait(*work).ok(), work->status().message());
    EXPECT(tensors[kTensors - 1][kCount - 1] == 3, "wrong result");
    const int64_t held = me.runtime().memory_bytes();
    EXPECT(held <= (int64_t{16} << 20) + (1 << 20), "the pool holds " + std::to_string(held));
  });
  RequireNone(verdicts);
}

TEST_CASE("the second step travels as bits only") {
  WorldOptions options;
  options.configure = [](Config& c) { c.lock_schedule = false; };
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    std::vector<float> values(5, 1);
    for (int i = 0; i < 10; ++i) EXPECT(me.Reduce("w", "sum", values).ok(), "w");
    EXPECT(me.runtime().counters()["negotiation.inproc.requests"].value() == 1,
           "a name travelled again");
    EXPECT(me.runtime().counters()["negotiation.inproc.bits"].value() == 9, "bits were not used");
  });
  RequireNone(verdicts);
}

TEST_CASE("a response cache that is too small evicts and goes on") {
  WorldOptions options;
  options.configure = [](Config& c) { c.cache_capacity = 3; };
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    for (int step = 0; step < 30; ++step) {
      std::vector<std::vector<float>> tensors(7, std::vector<float>(3, 1));
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < 7; ++i) {
        const int t = (i + me.rank() * step) % 7;
        works.push_back(me.Submit(Tensor(std::to_string(t), "sum", {3}),
                                  tensors[static_cast<size_t>(t)].data(),
                                  tensors[static_cast<size_t>(t)].data())
                            .value());
      }
      for (auto& work : works) EXPECT(me.Wait(*work).ok(), work->status().message());
      for (auto& t : tensors) EXPECT(t[0] == 3, "wrong sum");
    }
  });
  RequireNone(verdicts);
}

TEST_CASE("outputs whose size only negotiation knows belong to the work") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(4, layout).Run([&](Rank& me) {
      const int rows = me.rank() * 3;  // rank 0 has none
      std::vector<float> mine(static_cast<size_t>(rows) * 2, static_cast<float>(me.rank()));
      std::shared_ptr<Work> work;
      const Status status =
          me.Run(Tensor("rows", "allgather", {rows, 2}), mine.data(), nullptr, &work);
      EXPECT(status.ok(), status.message());
      const Output& output = work->outputs()[0];
      EXPECT(output.shape() == Shape({18, 2}), ToString(output.shape()));
      const auto* values = reinterpret_cast<const float*>(output.data);
      for (int i = 0; i < 36; ++i) {
        const int from = i < 6 ? 1 : i < 18 ? 2 : 3;
        EXPECT(values[i] == static_cast<float>(from), "element " + std::to_string(i));
      }
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("ragged allgathers fuse alike on ranks whose own parts weigh differently") {
  WorldOptions options;
  options.configure = [](Config& c) {
    c.fusion_bytes = 400;
  };  // some ranks' own bytes fit, others' do not
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    constexpr int kTensors = 12;
    std::vector<std::vector<float>> mine(kTensors);
    std::vector<Request> requests;
    std::vector<const void*> inputs;
    for (int t = 0; t < kTensors; ++t) {
      const int rows = (me.rank() * 7 + t) % 30;
      mine[static_cast<size_t>(t)].assign(static_cast<size_t>(rows), static_cast<float>(me.rank()));
      requests.push_back(Tensor("t" + std::to_string(t), "allgather", {rows}));
      inputs.push_back(mine[static_cast<size_t>(t)].data());
    }
    auto work = me.SubmitGroup(requests, inputs, std::vector<void*>(kTensors, nullptr), "g");
    EXPECT(work.ok() && me.Wait(*work.value()).ok(),
           work.ok() ? work.value()->status().message() : "refused");
    for (int t = 0; t < kTensors; ++t) {
      const int64_t want = t % 30 + (7 + t) % 30 + (14 + t) % 30;
      EXPECT(work.value()->outputs()[static_cast<size_t>(t)].shape() == Shape({want}),
             "shape of tensor " + std::to_string(t));
    }
  });
  RequireNone(verdicts);
}

TEST_CASE("rank 0's fusion threshold holds for all") {
  std::atomic<int> made{0};
  WorldOptions options;
  options.configure = [](Config&) {};
  options.configure_rank = [&](int rank, Config& c) {
    c.fusion_bytes = rank == 0 ? 80 : 1 << 20, ++made;
  };
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    std::vector<std::vector<float>> tensors(6, std::vector<float>(10, 1));
    std::vector<Request> requests;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (auto& t : tensors) {
      requests.push_back(Tensor("t" + std::to_string(requests.size()), "sum", {10}));
      inputs.push_back(t.data());
      outputs.push_back(t.data());
    }
    auto work = me.SubmitGroup(requests, inputs, outputs, "g");
    EXPECT(me.Wait(*work.value()).ok() && tensors[5][9] == 3, "wrong sum");
    EXPECT(me.runtime().counters()["executor.buckets"].value() == 3, "not rank 0's plan");
  });
  RequireNone(verdicts);
  CHECK(made == 3);
}

}  // namespace
}  // namespace horon
