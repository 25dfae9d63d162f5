// The locked schedule with ranks that are unlike: one computes, polls, fails or leaves while the
// others go on; and jobs of random steps.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "test/support/steady.h"

namespace horon {
namespace {

using test::Count;
using test::Places;
using test::Rank;
using test::RequireNone;
using test::Settler;
using test::SizesAndPlaces;
using test::Step;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

TEST_CASE("a rank that computes does not keep back what a peer waits for") {
  for (int n : {2, 4}) {
    World world(n);
    Verdicts verdicts;
    Settler settle(n);
    std::atomic<int> served{0};
    world.Run([&](Rank& me) {
      Step step(10);
      settle(me, step, verdicts);
      const int64_t before = Count(me, "schedule.tensors");
      for (int i = 1; i <= 50; ++i) {
        step.Submit(me, static_cast<float>(i));
        while (me.rank() > 0 && served < i) std::this_thread::yield();  // not in the runtime
        EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum");
        if (me.rank() == 0) served = i;
      }
      // Else rank 0 had to ask why it waits, which ends the schedule.
      EXPECT(Count(me, "schedule.tensors") - before > 400, "the schedule was left");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("who polls need not wait") {
  World world(2);
  Verdicts verdicts;
  Settler settle(2);
  world.Run([&](Rank& me) {
    Step step(10);
    settle(me, step, verdicts);
    for (int i = 1; i <= 50; ++i) {
      step.Submit(me, static_cast<float>(i));
      for (; !step.done(); std::this_thread::yield()) me.runtime().Nudge();
      EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum");
    }
  });
  RequireNone(verdicts);
}

TEST_CASE("a rank that fails to agree in the middle of a schedule is told so") {
  for (const WorldOptions& place : Places()) {
    Verdicts verdicts;
    Settler settle(3);
    World(3, place).Run([&](Rank& me) {
      Step step(4);
      settle(me, step, verdicts);
      std::vector<float> values(me.rank() == 1 ? 7 : 6, 1);
      const Status status = me.Reduce("t1", "sum", values);
      EXPECT(status.code() == Code::kInvalidArgument, status.message());
      EXPECT(status.message().find("rank [1] has shape [7]") != std::string::npos,
             status.message());
      settle(me, step, verdicts);
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("a rank may leave while the schedule is locked") {
  for (const auto& [leaver, place] : SizesAndPlaces({0, 1, 2})) {
    Verdicts verdicts;
    Settler settle(3);
    World(3, place).Run([&](Rank& me) {
      Step step(4);
      settle(me, step, verdicts);
      if (me.rank() == leaver) {
        me.runtime().Shutdown();
        return;
      }
      std::vector<float> values(3, 1);
      const Status status = me.Reduce("t0", "sum", values);
      EXPECT(status.code() == Code::kAborted, status.message());
      EXPECT(values[0] == 1, "the tensor was written to");
    });
    RequireNone(verdicts);
  }
}

// The same random program on all ranks, submitted by each in an order of its own where it may.
void RandomJob(Rank& me, unsigned seed, Verdicts& verdicts) {
  std::mt19937 common(seed), own(seed * 31 + static_cast<unsigned>(me.rank()));
  constexpr int kTensors = 8;
  std::vector<std::vector<float>> values(kTensors + 1);
  std::vector<int> order(kTensors);
  for (int t = 0; t < kTensors; ++t) order[static_cast<size_t>(t)] = t;
  for (int i = 0; i < 150; ++i) {
    const auto kind = static_cast<unsigned>(common() % 24);
    // Mostly the whole step; sometimes a part of it, sometimes another tensor somewhere in it.
    const int tensors = kind == 0 ? static_cast<int>(common() % kTensors) : kTensors;
    const int other = kind == 1 ? static_cast<int>(common() % kTensors) : -1;
    const int64_t scale = 1 + common() % 3 * 4000 * (seed % 2);
    if (own() % 2 == 0) std::shuffle(order.begin(), order.end(), own);
    std::vector<std::shared_ptr<Work>> works;
    const auto submit = [&](int t, const std::string& name) {
      auto& tensor = values[static_cast<size_t>(t)];
      tensor.assign(static_cast<size_t>(seed % 3 == 0 ? 1 + t : scale),
                    static_cast<float>(me.rank() + i));
      auto work = me.Submit(Tensor(name, "sum", {static_cast<int64_t>(tensor.size())}),
                            tensor.data(), tensor.data(), own() % 2 == 0);
      EXPECT(work.ok(), work.status().message());
      if (work.ok()) works.push_back(work.value());
    };
    for (int at = 0; at < kTensors; ++at) {
      if (at == other) submit(kTensors, "other");
      if (const int t = order[static_cast<size_t>(at)]; t < tensors)
        submit(t, "t" + std::to_string(t));
      if (own() % 16 == 0) std::this_thread::yield();
    }
    for (auto& work : works) EXPECT(me.Wait(*work).ok(), work->status().message());
    const auto want = static_cast<float>(me.size() * (me.size() - 1) / 2 + me.size() * i);
    for (int t = 0; t < kTensors + 1; ++t) {
      if (t < kTensors ? t >= tensors : other < 0) continue;
      const auto& tensor = values[static_cast<size_t>(t)];
      EXPECT(std::all_of(tensor.begin(), tensor.end(), [&](float v) { return v == want; }),
             "wrong sum of tensor " + std::to_string(t) + " in step " + std::to_string(i));
    }
  }
}

TEST_CASE("random jobs enter and leave schedules and never go wrong") {
  for (unsigned seed = 1; seed <= 16; ++seed) {
    Verdicts verdicts;
    std::atomic<int64_t> locks{0};
    // Every layout with every kind of job.
    const WorldOptions place = Places()[seed % 8 % 3];
    World(1 + static_cast<int>(seed) % 4, place).Run([&](Rank& me) {
      RandomJob(me, seed, verdicts);
      locks += Count(me, "schedule.locks");
    });
    INFO("seed " << seed);
    RequireNone(verdicts);
    if (seed % 3 == 0 && seed % 4 != 0) CHECK(locks > 0);
  }
}

}  // namespace
}  // namespace horon
