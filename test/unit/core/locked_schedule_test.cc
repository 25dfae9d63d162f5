// The locked schedule with thread ranks: it is entered, saves all messages, and is left whenever a
// rank wants something else, however far the others have run ahead.
#include <atomic>
#include <bit>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "test/support/steady.h"

namespace horon {
namespace {

using test::Count;
using test::Rank;
using test::RequireNone;
using test::Settler;
using test::SizesAndPlaces;
using test::Step;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

// In one node nothing at all; with several, messages of the gate, of which a node's first rank sends
// at most ceil(log2 of the nodes) a bucket, and the others none. Of a sum they have data, however
// large it is; of Adasum none.
TEST_CASE("a steady step sends nothing but its data") {
  const auto [op, tensors, count] = GENERATE(
      std::tuple("sum", 20, 3), std::tuple("sum", 4, 3000), std::tuple("sum", 2, 9000),
      std::tuple("adasum", 4, 50));
  for (const auto& [n, place] : SizesAndPlaces({2, 3, 4})) {
    INFO(n << " ranks, " << place.local_size << " a node, " << op << " of " << count);
    const int a_node = place.local_size == 0 ? n : place.local_size;
    const int nodes = (n + a_node - 1) / a_node;
    const int rounds = std::bit_width(static_cast<unsigned>(nodes - 1));
    const bool sum = std::string(op) == "sum";
    World world(n, place);
    Settler settle(n);
    Verdicts verdicts;
    std::atomic<int> quiet{0};
    world.Run([&](Rank& me) {
      Step step(tensors, count, op);
      // More than once because a rank that gets no core for long may give the schedule up.
      for (int attempt = 0; attempt < 10; ++attempt) {
        settle(me, step, verdicts);
        const int64_t messages = Count(me, "negotiation.inproc.messages");
        const int64_t before = Count(me, "schedule.tensors");
        const int64_t words = Count(me, "schedule.messages");
        const int64_t carried = Count(me, "schedule.carried");
        const int64_t buckets = Count(me, "executor.buckets");
        for (int i = 0; i < 50; ++i) {
          step.Submit(me, static_cast<float>(i));
          EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum");
        }
        const bool locked = Count(me, "negotiation.inproc.messages") == messages &&
                            Count(me, "schedule.tensors") == before + 50 * tensors;
        quiet += locked;
        if (!locked) continue;
        const int64_t all =
            me.rank() % a_node != 0 ? 0 : rounds * (Count(me, "executor.buckets") - buckets);
        const int64_t alone = Count(me, "schedule.messages") - words;
        const int64_t with = Count(me, "schedule.carried") - carried;
        // Some may be of the step before, which ended without them on this rank.
        const int64_t late = rounds * static_cast<int64_t>(kGatePlaces);
        EXPECT(sum ? alone == 0 : with == 0, "words that should, or should not, come alone");
        EXPECT(alone <= all + late, "too many words");
        EXPECT(!sum || std::abs(with - all) <= late, "too many or too few messages");
      }
    });
    RequireNone(verdicts);
    CHECK(quiet >= n * 5);
  }
}

// Adasum's first one is sent as messages, which wait for the gate, and its last one goes through the
// lane, which has none.
TEST_CASE("buckets of one batch may go different ways") {
  for (const auto& [n, place] : SizesAndPlaces({2, 4})) {
    INFO(n << " ranks, " << place.local_size << " a node");
    Verdicts verdicts;
    Settler settle(n);
    std::atomic<int> stayed{0};
    World(n, place).Run([&](Rank& me) {
      Step step(std::vector<size_t>{100, 600'000}, "adasum");
      for (int attempt = 0; attempt < 5; ++attempt) {
        settle(me, step, verdicts);
        const int64_t before = Count(me, "schedule.tensors"), locks = Count(me, "schedule.locks");
        for (int i = 0; i < 5; ++i) {
          step.Submit(me, 2);
          EXPECT(step.Wait(me, 2), "wrong mean");
        }
        stayed += Count(me, "schedule.tensors") == before + 10 &&
                  Count(me, "schedule.locks") == locks;
      }
    });
    RequireNone(verdicts);
    CHECK(stayed >= n);  // a rank that gets no core for long may give the schedule up
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
  const std::string op = GENERATE("sum", "adasum");
  const int n = op == "sum" ? 3 : 4;  // of which Adasum goes through the lane
  for (const auto& [turning, place] : SizesAndPlaces({0, 1})) {
    INFO(op << ", " << place.local_size << " a node, rank " << turning << " turns away");
    Verdicts verdicts;
    Settler settle(n);
    World world(n, place);
    std::atomic<bool> ahead{false};
    world.Run([&](Rank& me) {
      // Large ones: the ranks ahead have packed as much as there is room for.
      Step step(2, 300000, op);
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
      EXPECT(other[3] == static_cast<float>(n), "wrong sum of the other tensor");
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

}  // namespace
}  // namespace horon
