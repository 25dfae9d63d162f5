// Averages of pairs and steps on thread ranks, all at once and in any order, over a network that
// loses, doubles, delays and reorders: everything ends, and no part of a sum is lost. What AD-PSGD
// does; the thread sanitizer sees it here. Every order of few messages: schedules_test.cc.
#include <atomic>
#include <cmath>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "test/support/road.h"
#include "test/support/unreliable.h"
#include "test/support/window_rank.h"

namespace horon {
namespace {

using test::Between;
using test::Muted;
using test::Rank;
using test::RequireNone;
using test::Total;
using test::Verdicts;
using test::Way;
using test::WindowRank;
using test::World;
using test::WorldOptions;

std::vector<int> AllBut(const Rank& me) {
  std::vector<int> others;
  for (int rank = 0; rank < me.size(); ++rank) {
    if (rank != me.rank()) others.push_back(rank);
  }
  return others;
}

// A rank's traffic: averages with anybody, at most two at a time, beside steps that add to all
// values.
class Traffic {
 public:
  Traffic(Rank& me, size_t count)
      : me_(me),
        others_(AllBut(me)),
        window_(me, std::vector<float>(count, static_cast<float>(me.rank())), others_, others_,
                true, "w", false),
        change_(count),
        shown_(count),
        random_(static_cast<unsigned>(me.rank())) {}

  void Act() {
    if (random_() % 4 == 0) std::this_thread::yield();
    if (random_() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds{random_() % 200});
    const int peer = others_[random_() % others_.size()];
    auto work =
        StartOrder(me_.runtime(),
                   window_.Make(OrderKind::kPair, {{peer, random_() % 2 == 0 ? 0.5 : 0.25}}), true);
    failed = failed || !work.ok();
    if (!work.ok()) return;
    ++begun;
    under_way_.push_back(work.value());
    if (random_() % 2 == 0) Step();
    if (under_way_.size() > 2 || random_() % 3 == 0) WaitForOne();
  }
  void End() {
    while (!under_way_.empty()) WaitForOne();
  }
  float value(size_t i) const { return window_.values[i]; }
  Status Free() { return window_.Free(); }

  bool failed = false;
  int begun = 0, missed = 0;
  double added = 0;  // to each value, by this rank's steps

 private:
  // The walk turns back where it comes far: small values, of which so many averages round off
  // little.
  void Step() {
    const double any = static_cast<double>(random_() % 5) - 2;
    const double by = std::abs(added + any) > kFar ? -any : any;
    std::fill(change_.begin(), change_.end(), static_cast<float>(by));
    Order order = window_.Make(OrderKind::kStep, {});
    order.input = reinterpret_cast<const std::byte*>(change_.data());
    order.output = reinterpret_cast<std::byte*>(shown_.data());
    window_.Do(std::move(order));
    failed = failed || !window_.status.ok();
    added += by;
  }
  void WaitForOne() {
    Work& work = *under_way_.front();
    if (me_.Wait(work).ok()) {
      missed += work.outputs()[0].received_splits.empty() ? 0 : 1;
    } else {
      failed = true;
    }
    under_way_.pop_front();
  }

  static constexpr double kFar = 4;

  Rank me_;
  std::vector<int> others_;
  WindowRank window_;
  std::vector<float> change_, shown_;
  std::mt19937 random_;
  std::deque<std::shared_ptr<Work>> under_way_;
};

void Stress(int size, const WorldOptions& options, int turns, size_t count) {
  Verdicts verdicts;
  World(size, options).Run([&](Rank& me) {
    Traffic traffic(me, count);
    for (int turn = 0; turn < turns; ++turn) traffic.Act();
    traffic.End();
    EXPECT(!traffic.failed && traffic.missed == 0, "an average was given up");
    const double begun = Total(me, "begun", traffic.begun);
    const double made =
        Total(me, "made", static_cast<double>(me.runtime().counters()["pair.averages"].value()));
    EXPECT(begun == size * turns && made == 2 * begun, "an average was made once, or thrice");
    const double want = size * (size - 1) / 2.0 + Total(me, "added", traffic.added);
    for (const size_t i : {size_t{0}, count / 2, count - 1})
      EXPECT(std::abs(Total(me, "sum " + std::to_string(i), traffic.value(i)) - want) < 1e-3,
             "the sum was not kept");
    EXPECT(traffic.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("what an average of a pair changes at its ends are opposites, to the bit") {  // P1
  constexpr size_t kCount = 70'001;
  const double weight = GENERATE(0.5, 0.25);
  WorldOptions options;
  options.local_size = GENERATE(0, 1);
  const auto begin = [](int rank) {  // numbers whose differences and parts need no rounding
    std::vector<float> values(kCount);
    std::mt19937 random(static_cast<unsigned>(rank));
    for (float& value : values)
      value = static_cast<float>(static_cast<int>(random() % 200'001) - 100'000) / 64;
    return values;
  };
  Verdicts verdicts;
  World(2, options).Run([&](Rank& me) {
    const int other = 1 - me.rank();
    WindowRank w(me, begin(me.rank()), {other}, {other});
    if (me.rank() == 0) w.Do(w.Make(OrderKind::kPair, {{other, weight}}));
    EXPECT(w.status.ok(), w.status.message());
    Total(me, "met", 0);
    const std::vector<float> mine = begin(me.rank()), theirs = begin(other);
    bool right = true;
    for (size_t i = 0; i < kCount; ++i)
      right = right && w.values[i] - mine[i] == static_cast<float>(weight) * (theirs[i] - mine[i]);
    EXPECT(right, "a change is not the weight's part of the difference");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// P2 P3 P4
TEST_CASE("averages of pairs and steps in random order end and keep the sum, by lost messages") {
  const int size = GENERATE(2, 3, 6, 16);
  INFO(size);
  WorldOptions options = Between(std::chrono::milliseconds{8'000}, 6, 12, 8);
  options.limit = std::chrono::seconds{300};
  Stress(size, options, size > 6 ? 8 : 20, 100);
}

TEST_CASE("a hundred thousand averages of pairs end and keep the sum") {  // P2
  WorldOptions options;
  options.limit = std::chrono::seconds{300};
  const int size = GENERATE(2, 4, 5, 16);
  INFO(size);
  Stress(size, options, 100'000 / size, 3);
}

TEST_CASE("and ten thousand between nodes") {  // P2
  WorldOptions options;
  options.local_size = 1;
  options.limit = std::chrono::seconds{300};
  Stress(4, options, 10'000 / 4, 3);
}

TEST_CASE("the same inside nodes and between them, with several pieces a message") {
  WorldOptions options = Between(std::chrono::milliseconds{8'000}, 0, 6, 6);
  options.local_size = GENERATE(0, 2);
  options.limit = std::chrono::seconds{300};
  Stress(4, options, 20, 70'001);
}

// P4. Rank 3 makes the average that it is asked for, and nobody hears of it.
TEST_CASE("a silent rank delays its partner only, once, and its average is made at both ends") {
  std::atomic<Way> ways[4] = {Way::kOpen, Way::kOpen, Way::kOpen, Way::kOpen};
  WorldOptions options = Between(std::chrono::milliseconds{1000}, 0, 0, 0);
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  constexpr float kBegin[] = {1, 2, 64, 128};
  Verdicts verdicts;
  World(4, options).Run([&](Rank& me) {
    WindowRank w(me, {kBegin[me.rank()]}, AllBut(me), AllBut(me), true, "w", false);
    const auto average = [&](int with) { return w.Do(w.Make(OrderKind::kPair, {{with, 0.5}})); };
    const auto counted = [&](const char* name) { return me.runtime().counters()[name].value(); };
    if (me.rank() == 3) ways[3] = Way::kMute;
    Total(me, "mute", 0);
    if (me.rank() == 2) {
      for (int turn = 0; turn < 3; ++turn)
        EXPECT(average(3) == std::vector<int64_t>{3}, "the silent rank was not named");
      EXPECT(counted("peer.silences") == 1, "it was waited for again and again");
      EXPECT(w.values[0] == kBegin[2], "an average is made before it was answered");
      EXPECT(average(0).empty(), "who has waited is not heard");
    }
    for (int turn = 0; turn < 200 && me.rank() < 2; ++turn)
      EXPECT(average(1 - me.rank()).empty() && w.status.ok(), "an average was given up");
    EXPECT(me.rank() == 2 || counted("peer.silences") == 0, "somebody else has waited");
    Total(me, "gone on", 0);
    if (me.rank() == 3) ways[3] = Way::kOpen;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (me.rank() == 2 && counted("peer.late") == 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    w.Do(w.Make(OrderKind::kPublish, {}));  // takes in what was late
    EXPECT(std::abs(Total(me, "sum", w.values[0]) - 195) < 1e-3, "it was made at one end");
    EXPECT(Total(me, "made", static_cast<double>(counted("pair.averages"))) == 2 * 402,
           "an average was made once, or thrice");
    if (me.rank() == 2) EXPECT(average(3).empty(), "it is not asked again");
    Total(me, "again", 0);
    EXPECT(std::abs(Total(me, "end", w.values[0]) - 195) < 1e-3, "the sum was not kept");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// --- after a death

constexpr int kTurns = 40, kDeath = 10;

// Ranks 0 and 1 average with each other, and somebody else dies in the middle of it. Each average
// is made at both ends, once, whether it was under way then or not.
void GoOn(World& world, int lost, const std::function<void()>& kill) {
  Verdicts verdicts;
  std::vector<std::unique_ptr<WindowRank>> windows(4);
  world.Run([&](Rank& me) {
    windows[static_cast<size_t>(me.rank())] =
        std::make_unique<WindowRank>(me, std::vector<float>(70'001, static_cast<float>(me.rank())),
                                     AllBut(me), AllBut(me), true, "w", false);
  });
  world.Run([&](Rank& me) {
    if (me.rank() > 1) return;
    WindowRank& w = *windows[static_cast<size_t>(me.rank())];
    const auto average = [&](int with) { return w.Do(w.Make(OrderKind::kPair, {{with, 0.5}})); };
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn == kDeath && me.rank() == 0) kill();
      EXPECT(average(1 - me.rank()).empty() && w.status.ok(), "an average was given up");
    }
    std::vector<float> values = {1};
    EXPECT(!me.Reduce("after", "sum", values).ok(), "a collective cannot go on");
    EXPECT(average(lost) == std::vector<int64_t>{lost}, "who is lost was not named");
    EXPECT(average(1 - me.rank()).empty(), "an average after that was given up");
  });
  world.Run([&](Rank& me) {
    if (me.rank() > 1) return;
    const int64_t made = me.runtime().counters()["pair.averages"].value();
    EXPECT(made == 2 * (kTurns + 1), std::to_string(made) + " averages were made");
  });
  for (const size_t i : {size_t{0}, size_t{35'000}, size_t{70'000}})
    CHECK(windows[0]->values[i] + windows[1]->values[i] == Approx(1));
  RequireNone(verdicts);
}

void SetPatience(Config& config) { config.gossip_time = std::chrono::milliseconds{30'000}; }

TEST_CASE("when a rank of the node dies the others' averages go on") {
  World world(3, {.configure = SetPatience});
  GoOn(world, 2, [&] { world.MarkDead(2, "rank 2 was killed"); });
}

TEST_CASE("when a rank of another node dies averages inside a node go on") {
  WorldOptions options;
  options.local_size = 2;
  options.configure = SetPatience;
  options.losses = std::make_shared<Losses>();
  World world(4, options);
  GoOn(world, 3, [&] { options.losses->Report(3, "rank 3 was killed"); });  // as a launcher does
}

TEST_CASE("and between nodes, where the network goes on") {
  WorldOptions options;
  options.local_size = 1;
  options.network_outlives = true;
  options.configure = SetPatience;
  options.losses = std::make_shared<Losses>();
  World world(4, options);
  GoOn(world, 3, [&] {
    world.MarkDead(3, "rank 3 was killed");  // it answers no more
    options.losses->Report(3, "rank 3 was killed");
  });
}

TEST_CASE("where it does not, nobody of another node is waited for after a death") {
  WorldOptions options;
  options.local_size = 1;
  options.configure = SetPatience;
  options.losses = std::make_shared<Losses>();
  Verdicts verdicts;
  World world(3, options);
  std::vector<std::unique_ptr<WindowRank>> windows(3);
  world.Run([&](Rank& me) {
    auto& w = windows[static_cast<size_t>(me.rank())];
    w = std::make_unique<WindowRank>(me, std::vector<float>{1}, AllBut(me), AllBut(me), true, "w",
                                     false);
    if (me.rank() < 2) EXPECT(w->Put({{1 - me.rank(), 1}}).empty(), "a put did not arrive");
    Total(me, "put", 0);
  });
  options.losses->Report(2, "rank 2 was killed");
  world.Run([&](Rank& me) {
    if (me.rank() == 2) return;
    WindowRank& w = *windows[static_cast<size_t>(me.rank())];
    std::vector<float> values = {1};
    EXPECT(!me.Reduce("after", "sum", values).ok(), "a collective cannot go on");
    const auto begun = std::chrono::steady_clock::now();
    const int other = 1 - me.rank();
    EXPECT(w.Do(w.Make(OrderKind::kPair, {{other, 0.5}})) == std::vector<int64_t>{other},
           "an average was made over a way that is cut");
    EXPECT(w.Update(0.5, {{other, 0.5}}) == std::vector<int64_t>{other},
           "old values were mixed of a rank that cannot be reached");
    EXPECT(std::chrono::steady_clock::now() - begun < std::chrono::seconds{10},
           "it was waited for");
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
