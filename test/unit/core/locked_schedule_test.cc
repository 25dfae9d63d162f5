// The locked schedule with thread ranks: it is entered, saves all messages, and is left whenever a
// rank wants something else, however far the others have run ahead.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <random>
#include <thread>

#include "test/support/road.h"

namespace horon {
namespace {

using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

int64_t Count(Rank& me, const std::string& name) { return me.runtime().counters()[name].value(); }

// Tensors that are reduced at once, in place: rank r has r + value(t) everywhere.
class Step {
 public:
  explicit Step(int tensors, int64_t count = 3) {
    for (int t = 0; t < tensors; ++t) values_.emplace_back(static_cast<size_t>(count * (1 + t)));
  }
  void Submit(Rank& me, float value, int first = 0, int last = -1) {
    const int end = last < 0 ? static_cast<int>(values_.size()) : last;
    for (int t = first; t < end; ++t) {
      auto& tensor = values_[static_cast<size_t>(t)];
      std::fill(tensor.begin(), tensor.end(), static_cast<float>(me.rank()) + value);
      works_.push_back(
          me.Submit(Tensor("t" + std::to_string(t), "sum", {static_cast<int64_t>(tensor.size())}),
                    tensor.data(), tensor.data())
              .value());
    }
  }
  bool done() const {
    return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->done(); });
  }
  // Whether all hold what the sum must be.
  bool Wait(Rank& me, float value, size_t tensors = 1000) {
    bool right = true;
    for (auto& work : std::exchange(works_, {})) right = me.Wait(*work).ok() && right;
    const int n = me.size();
    const float want = static_cast<float>(n * (n - 1) / 2) + static_cast<float>(n) * value;
    for (size_t t = 0; t < std::min(tensors, values_.size()); ++t) {
      for (float v : values_[t]) right = right && v == want;
    }
    return right;
  }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<std::shared_ptr<Work>> works_;
};

// Where all ranks share a lane, where each is a node, and where a node has several.
std::vector<WorldOptions> Places() {
  WorldOptions apart, pairs;
  apart.local_size = 1;
  pairs.local_size = 2;
  return {{}, apart, pairs};
}

std::vector<std::pair<int, WorldOptions>> SizesAndPlaces(const std::vector<int>& sizes) {
  std::vector<std::pair<int, WorldOptions>> all;
  for (int size : sizes) {
    for (const WorldOptions& place : Places()) all.emplace_back(size, place);
  }
  return all;
}

// Runs steps until all ranks have run one that was locked.
class Settler {
 public:
  explicit Settler(int ranks) : ranks_(ranks), together_(ranks) {}
  void operator()(Rank& me, Step& step, Verdicts& verdicts) {
    for (int i = 0; i < 2000; ++i) {
      const int64_t before = Count(me, "schedule.tensors");
      step.Submit(me, static_cast<float>(i));
      EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum while settling");
      locked_ += Count(me, "schedule.tensors") > before;
      together_.arrive_and_wait();
      const bool done = locked_ == ranks_;
      together_.arrive_and_wait();
      locked_ = 0;
      if (done) return;
    }
    EXPECT(false, "the steady job was not locked");
  }

 private:
  int ranks_;
  std::barrier<> together_;
  std::atomic<int> locked_{0};
};

TEST_CASE("a steady step sends nothing but its data") {
  for (const auto& [n, place] : SizesAndPlaces({2, 3, 4})) {
    INFO(n << " ranks, " << place.local_size << " a node");
    World world(n, place);
    Settler settle(n);
    Verdicts verdicts;
    std::atomic<int> quiet{0};
    world.Run([&](Rank& me) {
      Step step(20);
      // More than once because a rank that gets no core for long may give the schedule up.
      for (int attempt = 0; attempt < 20; ++attempt) {
        settle(me, step, verdicts);
        const int64_t messages = Count(me, "negotiation.inproc.messages");
        const int64_t tensors = Count(me, "schedule.tensors");
        for (int i = 0; i < 100; ++i) {
          step.Submit(me, static_cast<float>(i));
          EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum");
        }
        quiet += Count(me, "negotiation.inproc.messages") == messages &&
                 Count(me, "schedule.tensors") == tensors + 2000;
      }
    });
    RequireNone(verdicts);
    CHECK(quiet >= n * 10);
  }
}

TEST_CASE("rank 0 decides whether schedules are locked") {
  WorldOptions options;
  options.configure_rank = [](int rank, Config& c) { c.lock_schedule = rank != 0; };
  Verdicts verdicts;
  World(2, options).Run([&](Rank& me) {
    Step step(3);
    for (int i = 0; i < 20; ++i) {
      step.Submit(me, 1);
      EXPECT(step.Wait(me, 1), "wrong sum");
    }
    EXPECT(Count(me, "schedule.locks") == 0, "it was locked");
  });
  RequireNone(verdicts);
}

TEST_CASE("another tensor, shape, op or set leaves the schedule, which comes again") {
  for (const auto& [n, place] : SizesAndPlaces({2, 4})) {
    Verdicts verdicts;
    Settler settle(n);
    World(n, place).Run([&](Rank& me) {
      Step step(5);
      const std::vector<std::function<void()>> odd = {
          [&] {
            std::vector<float> other(4, 1);
            EXPECT(
                me.Reduce("other", "sum", other).ok() && other[0] == static_cast<float>(me.size()),
                "another tensor");
          },
          [&] {
            std::vector<float> longer(77, 1);
            EXPECT(
                me.Reduce("t1", "sum", longer).ok() && longer[76] == static_cast<float>(me.size()),
                "another shape");
          },
          [&] {
            std::vector<float> largest(6, static_cast<float>(me.rank()));
            EXPECT(me.Reduce("t1", "max", largest).ok() &&
                       largest[5] == static_cast<float>(me.size() - 1),
                   "another op");
          },
          [&] {
            const auto set = me.AddProcessSet({0});
            EXPECT(set.ok(), set.status().message());
            EXPECT(me.RemoveProcessSet(set.value()).ok(), "a set is removed");
          },
          [&] {
            std::vector<float> all(static_cast<size_t>(me.size()));
            const auto mine = static_cast<float>(me.rank());
            EXPECT(me.Run(Tensor("gathered", "allgather", {1}), &mine, all.data()).ok(),
                   "allgather");
          },
      };
      for (const auto& other : odd) {
        settle(me, step, verdicts);
        other();
      }
      settle(me, step, verdicts);
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("what a rank has started ahead of a rank that turns away is taken back") {
  for (const auto& [turning, place] : SizesAndPlaces({0, 1})) {
    Verdicts verdicts;
    Settler settle(3);
    World world(3, place);
    std::atomic<bool> ahead{false};
    world.Run([&](Rank& me) {
      // Large ones: the ranks ahead have packed as much as there is room for.
      Step step(2, 300000);
      settle(me, step, verdicts);
      std::vector<float> other(4, 1);
      if (me.rank() == turning) {
        ahead.wait(false);
        auto work = me.Submit(Tensor("other", "sum", {4}), other.data(), other.data()).value();
        step.Submit(me, 5);
        EXPECT(me.Wait(*work).ok(), work->status().message());
      } else {
        step.Submit(me, 5);
        if (me.rank() == 2) {
          ahead = true;
          ahead.notify_all();
        }
        EXPECT(me.Reduce("other", "sum", other).ok(), "the other tensor");
      }
      EXPECT(other[3] == 3, "wrong sum of the other tensor");
      EXPECT(step.Wait(me, 5), "wrong sum of what was taken back");
      settle(me, step, verdicts);
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("after an interruption one step brings the schedule back") {
  for (const auto& [n, place] : SizesAndPlaces({2, 4})) {
    World world(n, place);
    Verdicts verdicts;
    Settler settle(n);
    std::atomic<int> locked{0};
    world.Run([&](Rank& me) {
      Step step(10);
      settle(me, step, verdicts);
      std::vector<float> metric(1);
      for (int i = 0; i < 30; ++i) {
        EXPECT(me.Reduce("metric", "max", metric).ok(), "the metric failed");
        const int64_t before = Count(me, "schedule.tensors");
        for (int s = 0; s < 4; ++s) {
          step.Submit(me, 1);
          EXPECT(step.Wait(me, 1), "wrong sum");
        }
        locked += Count(me, "schedule.tensors") - before >= 20;
      }
    });
    RequireNone(verdicts);
    CHECK(locked >= n * 15);  // a rank that gets no core for long may give it up
  }
}

TEST_CASE("a part of the step alone does not wait for the rest") {
  for (auto& [lend, options] : SizesAndPlaces({0, 1})) {
    options.configure = [lend = lend != 0](Config& c) { c.lend = lend; };
    Verdicts verdicts;
    Settler settle(3);
    World(3, options).Run([&](Rank& me) {
      Step step(10);
      settle(me, step, verdicts);
      for (int i = 0; i < 5; ++i) {
        step.Submit(me, 2, 0, 4);
        EXPECT(step.Wait(me, 2, 4), "wrong sum of a part");
        step.Submit(me, 3);
        EXPECT(step.Wait(me, 3), "wrong sum after a part");
      }
    });
    RequireNone(verdicts);
  }
}

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
