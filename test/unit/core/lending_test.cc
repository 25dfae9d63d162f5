// Blocking calls run the cycle themselves, and leave the background thread asleep.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <list>
#include <string>
#include <thread>

#include "runtime/base/cores.h"
#include "test/support/recorded.h"
#include "test/support/steady.h"

namespace horon {
namespace {

using test::Rank;
using test::RequireNone;
using test::Verdicts;
using test::World;
using test::WorldOptions;

TEST_CASE("lending: a loop of blocking calls between nodes leaves background threads asleep") {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatches = 40, kCalls = 50, kRanks = 2;
  constexpr std::chrono::milliseconds kLong{2};  // as in Runtime::MustWakeBackground
  std::atomic<int> judged{0};                    // ranks
  WorldOptions apart;
  apart.local_size = 1;
  Verdicts verdicts;
  World world(kRanks, apart);
  world.Run([&](Rank& me) {
    const Doorbell& bell = world.bell(me.rank());
    // It is woken where it has slept for long: a batch with a call that took as long tells nothing.
    uint32_t fewest = kCalls;
    bool mine = false;
    for (int batch = 0; batch < kBatches; ++batch) {
      const uint32_t before = bell.ticket();
      Clock::duration longest{};
      for (int call = 0; call < kCalls; ++call) {
        const auto start = Clock::now();
        std::vector<float> values(1, 1);
        EXPECT(me.Reduce("x", "sum", values).ok() && values[0] == kRanks, "wrong sum");
        longest = std::max(longest, Clock::now() - start);
      }
      if (longest >= kLong) continue;
      fewest = std::min(fewest, bell.ticket() - before);
      mine = true;
    }
    EXPECT(!mine || fewest < kCalls / 4, "woken " + std::to_string(fewest) + " times at best");
    if (mine) ++judged;
  });
  RequireNone(verdicts);
  if (judged == 0) WARN("nothing is known: no batch without a call of 2 ms, as under sanitizers");
}

TEST_CASE("lending: a rank that is back from a call hears what others ask of it") {
  WorldOptions apart;
  apart.local_size = 1;
  Verdicts verdicts;
  World(3, apart).Run([&](Rank& me) {
    const auto pair = me.AddProcessSet({1, 2});
    EXPECT(pair.ok(), pair.status().message());
    std::vector<float> values(1, 1);
    for (int call = 0; call < 200; ++call) EXPECT(me.Reduce("x", "sum", values).ok(), "failed");
    if (me.rank() == 0) return;  // whose background thread must agree to what the others do now
    for (int call = 0; call < 20; ++call) {
      Request request = test::Tensor("y" + std::to_string(call), "sum", {1});
      request.process_set = pair.ok() ? pair.value() : 0;
      EXPECT(me.Run(request, values.data(), values.data()).ok(), "failed");
    }
  });
  RequireNone(verdicts);
}

TEST_CASE("lending: several works are waited for as one") {
  for (auto& [lend, options] : test::SizesAndPlaces({0, 1})) {
    options.configure = [lend = lend != 0](Config& c) { c.lend = lend; };
    Verdicts verdicts;
    test::Settler settle(2);
    World(2, options).Run([&](Rank& me) {
      test::Step step(30);
      for (int i = 0; i < 40; ++i) {
        if (i == 20) settle(me, step, verdicts);
        step.Submit(me, 1);
        EXPECT(step.WaitAll(me, 1), "wrong sum");
      }
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("lending: what one of several works waits for in vain ends the wait for all") {
  WorldOptions options;
  options.configure = [](Config& c) { c.stall_shutdown = std::chrono::milliseconds{1000}; };
  Verdicts verdicts;
  World(2, options).Run([&](Rank& me) {
    std::vector<float> both(1, 1), mine(1, 1);
    const auto work = me.Submit(test::Tensor("both", "sum", {1}), both.data(), both.data()).value();
    std::shared_ptr<Work> alone;
    std::vector<Work*> works{work.get()};
    if (me.rank() == 1) {
      alone = me.Submit(test::Tensor("mine", "sum", {1}), mine.data(), mine.data()).value();
      works.push_back(alone.get());
    }
    EXPECT(me.runtime().Wait(works, std::chrono::seconds{60}), "the wait ended without an end");
    EXPECT(work->status().ok() && both[0] == 2, "the tensor that all have");
    if (alone) EXPECT(alone->status().code() == Code::kAborted, alone->status().message());
  });
  RequireNone(verdicts);
}

// A post-mortem goes by the last wait of each thread.
TEST_CASE("lending: of a work that gathers, what was lost is recorded as waited for") {
  WorldOptions options;
  options.recorder = Recorder::InMemory(1024).value();
  Verdicts verdicts;
  World world(2, options);
  std::latch passed(1);
  world.Run([&](Rank& me) {
    if (me.rank() == 1) {
      std::vector<float> values(3, 1);
      EXPECT(me.Reduce("done", "sum", values).ok(), "what both ranks have");
      passed.wait();
      world.MarkDead(1, "rank 1 was killed");
      return;
    }
    const auto work = std::make_shared<Work>(Work::Gathers());
    std::list<std::vector<float>> places;
    for (const char* const name : {"done", "lost", "more"}) {
      auto& tensor = places.emplace_back(3, 1.0f);
      auto* const place = reinterpret_cast<std::byte*>(tensor.data());
      Submission one{me.runtime().registry().Of(test::Tensor(name, "sum", {3})).value(), place,
                     place};
      EXPECT(me.runtime().Submit({&one, 1}, work, true).ok(), name);
    }
    work->Close();
    while (work->first()->request.name == "done") {
      me.runtime().Nudge();
      std::this_thread::yield();
    }
    passed.count_down();
    EXPECT(!me.Wait(*work).ok(), "the loss of a rank went unnoticed");
  });
  RequireNone(verdicts);
  std::string last;
  for (const auto& [number, event] : test::ReadAll(*options.recorder)) {
    if (event.kind == EventKind::kWaits) last = event.text;
  }
  CHECK(last == "0/lost");
}

TEST_CASE("lending: with no core to spare a wait ends what else moves before it returns",
          "[cost]") {
  const int ranks = Cores();
  if (ranks < 2 || ranks > 8) {
    WARN("skipped: it takes 2 to 8 ranks, one a core, and there are " << ranks << " cores");
    return;
  }
  constexpr int kBatches = 40, kSteps = 20;
  constexpr size_t kLarge = 1 << 20;
  Verdicts verdicts;
  // On a busy machine some batches tell nothing, because others want the core.
  std::atomic<int> most{0};
  World(ranks).Run([&](Rank& me) {
    std::vector<float> little(4), much(kLarge);
    for (int batch = 0; batch < kBatches; ++batch) {
      int ended = 0;
      for (int step = 0; step < kSteps; ++step) {
        std::fill(much.begin(), much.end(), 1.0f);
        const auto first =
            me.Submit(test::Tensor("first", "max", {4}), little.data(), little.data());
        const auto rest = me.Submit(test::Tensor("rest", "sum", {static_cast<int64_t>(kLarge)}),
                                    much.data(), much.data());
        EXPECT(first.ok() && rest.ok(), "submit");
        EXPECT(me.Wait(*first.value()).ok(), "first");
        ended += rest.value()->done();
        EXPECT(me.Wait(*rest.value()).ok() && much.back() == static_cast<float>(ranks), "rest");
      }
      if (ended > most) most = ended;
    }
  });
  RequireNone(verdicts);
  CHECK(most >= kSteps * 3 / 4);
}

}  // namespace
}  // namespace horon
