// Windows when something goes wrong: lost, doubled and delayed messages, ranks that are silent or
// dead, windows freed in use, and what no peer sends.
#include <atomic>
#include <barrier>
#include <cmath>
#include <thread>

#include "runtime/peer/peer_wire.h"
#include "runtime/peer/window_row.h"
#include "test/support/road.h"
#include "test/support/unreliable.h"
#include "test/support/window_rank.h"

namespace horon {
namespace {

using test::Between;
using test::ExactShares;
using test::Muted;
using test::Rank;
using test::Ranks;
using test::RequireNone;
using test::Total;
using test::Unreliable;
using test::Verdicts;
using test::Way;
using test::WindowRank;
using test::World;
using test::WorldOptions;

int Next(const Rank& me, int by = 1) { return (me.rank() + by + me.size()) % me.size(); }

TEST_CASE("lost, doubled, delayed and reordered messages change no sum") {  // O3
  const size_t count = GENERATE(3, 70'001);  // one piece, so that a doubled piece is a message; two
  Verdicts verdicts;
  World(3, Between(std::chrono::milliseconds{4000}, 3, 15, 6)).Run([&](Rank& me) {
    const std::vector<int> others = {Next(me), Next(me, 2)};
    WindowRank w(me, std::vector<float>(count, static_cast<float>(1 << me.rank())), others, others);
    const Ranks parts = {{others[0], 0.25}, {others[1], 0.25}};
    for (int step = 0; step < 8; ++step) {
      EXPECT(w.Add(parts, 0.5, true).empty() && w.status.ok(), "a share was given up");
      w.Collect(true);
    }
    Total(me, "end", 0);
    const auto held = w.Look();
    for (const size_t i : {size_t{0}, held.size() / 2, held.size() - 1})
      EXPECT(std::abs(Total(me, "mass " + std::to_string(i), held[i]) - 7) < 1e-4,
             "mass was lost, or doubled");
    w.Collect(true);
    EXPECT(std::abs(Total(me, "weights", w.window->share) - 3) < 1e-9, "the weights' sum moved");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("with one message in ten lost, and more, sums are exact") {  // O3
  const unsigned seed = GENERATE(range(1u, 9u));
  WorldOptions options = Between(std::chrono::milliseconds{2000}, 0, 0, 0);
  options.wrap = [=](int rank, std::unique_ptr<Transport> inner) {
    const unsigned own = 100 * seed + static_cast<unsigned>(rank);
    return std::make_unique<Unreliable>(std::move(inner), own, 10, 15, 6);
  };
  INFO(seed);
  Verdicts verdicts;
  World(4, options).Run([&](Rank& me) {
    ExactShares shares(me);
    for (int turn = 0; turn < 2; ++turn) {
      shares.Act(5);
      EXPECT(shares.SumsHold(), "mass was lost, or doubled");
      EXPECT(!shares.missed, "a share was given up");
      shares.Refill();
    }
    EXPECT(shares.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a silent rank costs one wait, no share is lost or doubled, and the others go on") {
  const bool offers = GENERATE(false, true);
  WorldOptions options = Between(std::chrono::milliseconds{1500}, 0, 0, 0);
  options.wrap = [](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    return std::make_unique<Unreliable>(std::move(inner), 1u, rank == 2 ? 100 : 0, 0, 0);
  };
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    const std::vector<int> others = {Next(me), Next(me, 2)};
    WindowRank w(me, {4}, others, others);
    if (me.rank() != 2) {
      const int other = 1 - me.rank();
      for (int step = 0; step < 4; ++step) {
        Order order = w.Make(OrderKind::kAdd, {{other, 0.25}, {2, 0.25}}, 0.5, true);
        order.if_asked = offers;
        const auto missed = w.Do(std::move(order));
        EXPECT(missed == std::vector<int64_t>{2}, "the silent rank was not named");
        Total(me, "step", 0);
        w.Collect(true);
        w.window->Ask(true);
        Total(me, "taken", 0);
      }
      const float left = offers ? 4 : 3;  // of an offer without an answer nothing has gone
      EXPECT(w.values[0] == left && w.window->share == left / 4, "what it has is here too");
      EXPECT(me.runtime().counters()["peer.silences"].value() == 1,
             "it was waited for again and again");
    } else {
      for (int step = 0; step < 4; ++step) Total(me, "step", 0), Total(me, "taken", 0);
    }
    Total(me, "end", 0);
    EXPECT(Total(me, "mass", w.Look()[0]) == 12, "mass was lost, or doubled");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("what a late rank was given is there once it is heard, and once") {
  const int muted = GENERATE(0, 1);  // questions are lost, or answers
  std::atomic<Way> ways[2] = {Way::kOpen, Way::kOpen};
  WorldOptions options = Between(std::chrono::milliseconds{1500}, 0, 0, 0);
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  Verdicts verdicts;
  World(2, options).Run([&](Rank& me) {
    WindowRank w(me, {4}, {1 - me.rank()}, {1 - me.rank()});
    if (me.rank() == 0) {
      ways[muted] = Way::kMute;
      EXPECT(w.Add({{1, 0.25}}, 0.75, true) == std::vector<int64_t>{1}, "it was not named");
      EXPECT(w.values[0] == 3, "what it may have is here too");
      ways[muted] = Way::kOpen;
      const Counter& late = me.runtime().counters()["peer.late"];
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{10};
      while (late.value() == 0 && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
    }
    Total(me, "heard", 0);
    while (me.rank() == 1 && !w.Collect(true).empty()) {
    }
    EXPECT(w.values[0] == (me.rank() == 0 ? 3 : 5), "it is not there, or twice");
    EXPECT(w.window->share == (me.rank() == 0 ? 0.75 : 1.25), "so are the weights");
    Total(me, "checked", 0);
    // They go on with each other as before.
    if (me.rank() == 0) EXPECT(w.Add({{1, 0.5}}, 0.5, true).empty(), "it is not asked again");
    Total(me, "again", 0);
    if (me.rank() == 1) w.Collect(true);
    EXPECT(Total(me, "mass", w.Look()[0]) == 8, "mass was lost, or doubled");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("what a late rank was given comes back when it is gone") {
  std::atomic<Way> ways[2] = {Way::kOpen, Way::kMute};  // it never says that it has it
  WorldOptions options = Between(std::chrono::milliseconds{1000}, 0, 0, 0);
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  Verdicts verdicts;
  World world(2, options);
  std::vector<std::unique_ptr<WindowRank>> windows(2);
  world.Run([&](Rank& me) {
    auto& w = windows[static_cast<size_t>(me.rank())];
    const std::vector<int> other = {1 - me.rank()};
    w = std::make_unique<WindowRank>(me, std::vector<float>{4}, other, other);
    if (me.rank() != 0) return;
    EXPECT(w->Add({{1, 0.25}}, 0.75, true) == std::vector<int64_t>{1}, "it was not named");
    EXPECT(w->values[0] == 3 && w->window->share == 0.75, "what it may have is here too");
  });
  ways[0] = ways[1] = Way::kBroken;
  world.Run([&](Rank& me) {
    if (me.rank() != 0) return;
    std::vector<float> values = {1};
    EXPECT(!me.Reduce("after", "sum", values).ok(), "a collective cannot go on");
    EXPECT(windows[0]->Look()[0] == 4, windows[0]->status.message());
    EXPECT(windows[0]->values[0] == 4 && windows[0]->window->share == 1, "it did not come back");
  });
  RequireNone(verdicts);
}

TEST_CASE("what comes back does so behind a part that is being given away, not into it") {
  std::atomic<Way> ways[3] = {Way::kOpen, Way::kMute, Way::kOpen};
  WorldOptions options = Between(std::chrono::milliseconds{3000}, 0, 0, 0);
  options.losses = std::make_shared<Losses>();
  options.network_outlives = true;
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  Verdicts verdicts;
  World world(3, options);
  std::vector<std::unique_ptr<WindowRank>> windows(3);
  std::shared_ptr<Work> giving;
  world.Run([&](Rank& me) {
    auto& w = windows[static_cast<size_t>(me.rank())];
    const std::vector<int> others = {Next(me), Next(me, 2)};
    w = std::make_unique<WindowRank>(me, std::vector<float>{4}, others, others);
    if (me.rank() != 0) return;
    EXPECT(w->Add({{1, 0.25}}, 0.75, true) == std::vector<int64_t>{1}, "it was not named");
    ways[2] = Way::kMute;
    auto work = StartOrder(me.runtime(), w->Make(OrderKind::kAdd, {{2, 0.25}}, 0.75, true), false);
    EXPECT(work.ok(), work.status().message());
    giving = work.value();
  });
  world.Run([&](Rank& me) {  // the part is there, and its answer is not
    while (me.rank() == 2 && windows[2]->deliveries(0) == 0) std::this_thread::yield();
  });
  world.MarkDead(1, "rank 1 was killed");
  options.losses->Report(1, "rank 1 was killed");
  world.Run([&](Rank& me) {
    if (me.rank() != 0) return;
    std::vector<float> values = {1};
    EXPECT(!me.Reduce("after", "sum", values).ok(), "a collective cannot go on");
    auto& w = windows[0];
    EXPECT(!giving->done(), "rank 2 has answered");
    w->Do(w->Make(OrderKind::kPublish, {}));
    EXPECT(w->values[0] == 3, "what came back has changed what is being given away");
    ways[2] = Way::kOpen;
    EXPECT(me.Wait(*giving).ok(), "rank 2 did not answer");
    w->Do(w->Make(OrderKind::kPublish, {}));
    EXPECT(w->values[0] == 3.25f, "it did not come back, or was given away in part");
    EXPECT(w->window->share == 0.8125, "so did its weight");
  });
  RequireNone(verdicts);
}

TEST_CASE("who has given up on a mutex does not get it, and two silent ranks cost one wait") {
  constexpr std::chrono::milliseconds kPatience{1500};
  std::atomic<Way> ways[3] = {Way::kOpen, Way::kOpen, Way::kOpen};
  WorldOptions options = Between(kPatience, 0, 0, 0);
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    const std::vector<int> others = {Next(me), Next(me, 2)};
    WindowRank w(me, {4}, others, others);
    const auto act = [&](OrderKind kind, Ranks ranks) { return w.Do(w.Make(kind, ranks)); };
    const Ranks own = {{me.rank(), 1}};
    if (me.rank() != 0) EXPECT(act(OrderKind::kLock, own).empty(), "a free mutex was not had");
    Total(me, "held", 0);
    if (me.rank() == 0) {
      ways[1] = ways[2] = Way::kMute;
      const auto begun = std::chrono::steady_clock::now();
      EXPECT((act(OrderKind::kLock, {{1, 1}, {2, 1}}) == std::vector<int64_t>{1, 2}),
             "a mutex that is held was had");
      EXPECT(std::chrono::steady_clock::now() - begun < 2 * kPatience, "the waits add up");
      ways[1] = ways[2] = Way::kOpen;
    }
    Total(me, "given up", 0);
    if (me.rank() != 0) {
      act(OrderKind::kUnlock, own);
      EXPECT(act(OrderKind::kLock, own).empty(), "who gave up has it");
      act(OrderKind::kUnlock, own);
    }
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// Where the living go on after a death, inside a node and between nodes, without waiting it out.
WorldOptions WithDeaths() {
  WorldOptions options;
  options.local_size = GENERATE(0, 1);
  options.network_outlives = true;
  options.configure = [](Config& c) { c.gossip_time = std::chrono::milliseconds{60'000}; };
  options.losses = std::make_shared<Losses>();
  return options;
}

TEST_CASE("when a rank dies its share stays and windows go on, also between nodes") {
  const WorldOptions options = WithDeaths();
  Verdicts verdicts;
  World world(3, options);
  std::vector<std::unique_ptr<WindowRank>> windows(3);
  world.Run([&](Rank& me) {
    const std::vector<int> others = {Next(me), Next(me, 2)};
    auto& w = windows[static_cast<size_t>(me.rank())];
    w = std::make_unique<WindowRank>(me, std::vector<float>{1}, others, others);
    Total(me, "made", 0);
  });
  world.MarkDead(2, "rank 2 was killed");
  options.losses->Report(2, "rank 2 was killed");
  std::barrier<> together(2);  // who is ahead would mix its values more often, and round them
  world.Run([&](Rank& me) {
    if (me.rank() == 2) return;
    WindowRank& w = *windows[static_cast<size_t>(me.rank())];
    std::vector<float> values = {1};
    EXPECT(!me.Reduce("after", "sum", values).ok(), "a collective cannot go on");
    for (int step = 0; step < 10; ++step) {
      const auto missed = w.Add({{1 - me.rank(), 0.25}, {2, 0.25}}, 0.5, true);
      EXPECT(missed == std::vector<int64_t>{2},
             "the dead rank was not named: " + w.status.message());
      together.arrive_and_wait();
      EXPECT(w.Collect(true).empty(), w.status.message());
      together.arrive_and_wait();
    }
    EXPECT(w.Update(0.5, {{2, 0.5}}) == std::vector<int64_t>{2}, "a dead rank's values were mixed");
  });
  const auto held = [&](int r) { return windows[static_cast<size_t>(r)]->values[0]; };
  world.Run([&](Rank& me) {
    if (me.rank() == 2) return;
    windows[static_cast<size_t>(me.rank())]->Collect(true);
  });
  CHECK(held(0) + held(1) == 2.0f);
  RequireNone(verdicts);
}

TEST_CASE("a mutex whose holder has died is free again") {
  const WorldOptions options = WithDeaths();
  Verdicts verdicts;
  World world(3, options);
  std::vector<std::unique_ptr<WindowRank>> windows(3);
  world.Run([&](Rank& me) {
    const std::vector<int> others = {Next(me), Next(me, 2)};
    auto& w = windows[static_cast<size_t>(me.rank())];
    w = std::make_unique<WindowRank>(me, std::vector<float>{1}, others, others);
    if (me.rank() == 2)
      EXPECT(w->Do(w->Make(OrderKind::kLock, {{0, 1}})).empty(), "a free mutex was not had");
    Total(me, "held", 0);
  });
  world.MarkDead(2, "rank 2 was killed");
  options.losses->Report(2, "rank 2 was killed");
  world.Run([&](Rank& me) {
    if (me.rank() == 2) return;
    WindowRank& w = *windows[static_cast<size_t>(me.rank())];
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; ++i) {
      EXPECT(w.Do(w.Make(OrderKind::kLock, {{0, 1}})).empty() && w.status.ok(),
             "the dead rank keeps the mutex: " + w.status.message());
      w.Do(w.Make(OrderKind::kUnlock, {{0, 1}}));
    }
    const auto taken = std::chrono::steady_clock::now() - begun;
    EXPECT(taken < std::chrono::seconds{30}, "it was waited for");
  });
  RequireNone(verdicts);
}

TEST_CASE("a window that is freed while an order is under way stays, and all ranks hear why") {
  Verdicts verdicts;
  std::barrier<> waited(2);  // as long as the others may wait for who frees late
  World(2, Between(std::chrono::milliseconds{400}, 100, 0, 0)).Run([&](Rank& me) {
    const int other = Next(me);
    WindowRank w(me, {1}, {other}, {other});
    std::shared_ptr<Work> work;
    if (me.rank() == 0)
      work = StartOrder(me.runtime(), w.Make(OrderKind::kPut, {{other, 1.0}}), true).value();
    const Status freed = w.Free();
    EXPECT(freed.message().find("rank 0 has not waited") != std::string::npos, freed.message());
    if (work) me.Wait(*work).ok();
    waited.arrive_and_wait();
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("what no peer sends is refused") {
  PeerHeader good;
  good.kind = PeerKind::kPut;
  good.total_bytes = 100;
  good.offset = 40;
  good.piece_bytes = 60;
  constexpr auto kHead = static_cast<int64_t>(sizeof(PeerHeader));
  CHECK(CheckPiece(good, kHead + 60).ok());
  CHECK_FALSE(CheckPiece(good, kHead + 59).ok());
  CHECK_FALSE(CheckPiece(good, kHead - 1).ok());
  const auto spoilt = [&](auto&& spoil) {
    PeerHeader bad = good;
    spoil(bad);
    return CheckPiece(bad, kHead + bad.piece_bytes).ok();
  };
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.magic = 1; }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.kind = static_cast<PeerKind>(99); }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.offset = 41; }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.offset = -1; }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.offset = INT64_MAX; }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.piece_bytes = 0; }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.tensor_round = -1; }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.tensor_round = kMostTensorRounds; }));
  CHECK_FALSE(spoilt([](PeerHeader& h) { h.weight = std::nan(""); }));
}

TEST_CASE("rows of a window survive the way, and nonsense is refused") {
  WindowRow row;
  row.dtype = DataType::kFloat64;
  row.shape = {3, 4};
  row.in = {1, 5};
  row.out = {2};
  row.address = {12, 3, -7};
  row.gets = false;
  row.rounds = "by a graph";
  const auto numbers = Encode(row);
  const auto back = DecodeWindowRow(numbers);
  REQUIRE(back.ok());
  CHECK(Encode(back.value()) == numbers);
  CHECK_FALSE(back.value().gets);
  CHECK(back.value().rounds == row.rounds);
  for (size_t count = 0; count < numbers.size(); ++count)
    CHECK_FALSE(DecodeWindowRow({numbers.data(), count}).ok());
  for (const size_t place : {size_t{1}, size_t{5}, size_t{6}, size_t{7}, size_t{8}}) {
    for (const int64_t nonsense : {int64_t{-1}, int64_t{1000}, INT64_MAX, INT64_MIN}) {
      auto bad = numbers;
      bad[place] = nonsense;
      CHECK_FALSE(DecodeWindowRow(bad).ok());
    }
  }
}

}  // namespace
}  // namespace horon
