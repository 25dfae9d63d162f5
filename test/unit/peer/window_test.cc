// Windows on thread ranks: what each order does, inside a node and between nodes.
#include <cmath>
#include <numeric>
#include <random>

#include "runtime/base/shared_memory.h"
#include "test/support/road.h"
#include "test/support/window_rank.h"

namespace horon {
namespace {

using test::ExactShares;
using test::HeardIn;
using test::kIrregular;
using test::LocalSize;
using test::Rank;
using test::Ranks;
using test::RequireNone;
using test::Total;
using test::Verdicts;
using test::WindowRank;
using test::WindowRankOf;
using test::World;
using test::WorldOptions;

constexpr size_t kCount = 70'001;  // several pieces of a message

int Next(const Rank& me, int by = 1) { return (me.rank() + by + me.size()) % me.size(); }

bool All(const std::vector<float>& values, float expected) {
  for (const float value : values) {
    if (value != expected) return false;
  }
  return true;
}

TEST_CASE("a put replaces, an accumulate adds, an update mixes and counts") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    WindowRank w(me, std::vector<float>(kCount, static_cast<float>(me.rank() + 1)), {from}, {to});
    EXPECT(w.status.ok(), w.status.message());
    EXPECT(w.Put({{to, 1.0}}).empty() && w.status.ok(), w.status.message());
    Total(me, "put", 0);
    EXPECT(w.deliveries(from) == 1, "a delivery is not counted");
    Total(me, "counted", 0);
    w.Put({{to, 0.5}});
    w.Add({{to, 2.0}});
    Total(me, "added", 0);
    EXPECT(w.deliveries(from) == 3, "three deliveries are not counted");
    const float theirs = static_cast<float>(from + 1), own = static_cast<float>(me.rank() + 1);
    EXPECT(All(w.Look(), own + 2.5f * theirs), "put and accumulate do not add up");
    w.Update(0.5, {{from, 0.5}});
    EXPECT(w.deliveries(from) == 0, "the update did not take the deliveries");
    EXPECT(All(w.values, own + 0.5f * (2.5f * theirs - own)), "the update mixes wrongly");
    w.Collect();
    const std::vector<float> before = w.values;
    w.Collect();
    EXPECT(w.values == before, "what was collected is still there");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("what was collected counts as zeros, and what comes next replaces it") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    WindowRank w(me, std::vector<float>(kCount, 1), {from}, {to});
    const auto give = [&](bool adds) {
      adds ? w.Add({{to, 3.0}}) : w.Put({{to, 3.0}});
      Total(me, "given", 0);
    };
    const auto reset = [&] {
      Total(me, "looked", 0);
      std::fill(w.values.begin(), w.values.end(), 1.0f);
    };
    for (int round = 0; round < 2; ++round) {  // of new memory, then of memory that was used
      w.Collect();
      EXPECT(All(w.values, 1), "there was something in an empty slot");
      EXPECT(All(w.Look(), 1), "one that only looks finds something there");
      Total(me, "seen", 0);
      for (const bool adds : {true, false}) {
        give(adds);
        w.Collect();
        EXPECT(All(w.values, 4), "what came after a collect is not all that is there");
        reset();
      }
      give(true), give(true);
      w.Collect();
      EXPECT(All(w.values, 7), "two deliveries do not add up");
      reset();
      w.Update(0.5, {{from, 0.5}});
      EXPECT(All(w.values, 0.5f), "an empty slot is mixed as something else than zeros");
      reset();
      give(true);  // onto the zeros that the update has seen
      w.Collect();
      EXPECT(All(w.values, 4), "what came after an update is not all that is there");
      reset();
    }
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a collect adds what several ranks brought, of doubles and of 16 bits as well") {
  const DataType dtype = GENERATE(DataType::kFloat64, DataType::kBFloat16);
  Verdicts verdicts;
  World(4).Run([&](Rank& me) {
    const std::vector<int> others = {Next(me), Next(me, 2), Next(me, 3)};
    WindowShape shape;
    shape.name = "w";
    shape.dtype = dtype;
    shape.shape = {1000};
    shape.in = shape.out = others;
    std::vector<double> wide(1000, 1);
    std::vector<uint16_t> narrow(1000, 0x3f80);
    const bool is_wide = dtype == DataType::kFloat64;
    auto* values = is_wide ? reinterpret_cast<std::byte*>(wide.data())
                           : reinterpret_cast<std::byte*>(narrow.data());
    const auto made = MakeWindow(me.runtime(), std::move(shape), {values}, true);
    EXPECT(made.ok(), made.status().message());
    const auto act = [&](OrderKind kind, double weight, bool reset) {
      Order order;
      order.kind = kind;
      order.window = made.value();
      for (const int rank : others) order.ranks.emplace_back(rank, weight);
      order.reset = reset;
      const auto work = StartOrder(me.runtime(), std::move(order), false);
      EXPECT(work.ok() && me.Wait(*work.value()).ok(), "an order failed");
    };
    act(OrderKind::kAdd, 0.5, false);
    Total(me, "given", 0);
    act(OrderKind::kUpdate, 2, true);
    act(OrderKind::kUpdate, 2, true);  // nothing is there any more
    for (size_t i = 0; i < 1000; ++i)
      EXPECT(is_wide ? wide[i] == 4 : narrow[i] == 0x4080, "the parts do not add up");
    EXPECT(FreeWindow(me.runtime(), made.value()).ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a window without gets refuses them, and all ranks must say so") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    const WindowRank odd(me, {1}, {from}, {to}, true, "odd", me.rank() != 2);
    EXPECT(odd.status.message().find("rank 2 float32 [1] without gets") != std::string::npos,
           odd.status.message());
    WindowRank w(me, {1}, {from}, {to}, true, "w", false);
    EXPECT(w.status.ok(), w.status.message());
    w.Do(w.Make(OrderKind::kGet, {{from, 1.0}}));
    EXPECT(w.status.code() == Code::kInvalidArgument &&
               w.status.message().find("made without gets") != std::string::npos,
           w.status.message());
    EXPECT(w.Put({{to, 2.0}}).empty() && w.status.ok(), w.status.message());
    Total(me, "put", 0);
    w.Collect();
    EXPECT(w.values[0] == 3, "what was put is not there");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a get reads what the other rank published, weighted") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    WindowRank w(me, std::vector<float>(kCount, static_cast<float>(me.rank())), {from}, {to});
    for (float& value : w.values) value += 10;
    w.Do(w.Make(OrderKind::kPublish, {}));
    Total(me, "published", 0);
    EXPECT(w.Do(w.Make(OrderKind::kGet, {{from, 2.0}})).empty(), w.status.message());
    EXPECT(w.deliveries(from) == 1, "a get is not counted");
    Total(me, "got", 0);
    w.Update(0, {{from, 1.0}});
    EXPECT(All(w.values, 2 * static_cast<float>(from + 10)), "a get read something else");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("equal values stay what they are, to the bit") {
  Verdicts verdicts;
  World(4).Run([&](Rank& me) {
    Ranks others;
    std::vector<int> ranks;
    for (int r = 0; r < me.size(); ++r) {
      if (r != me.rank()) others.emplace_back(r, 1.0), ranks.push_back(r);
    }
    WindowRank w(me, std::vector<float>(kCount, 0.1f), ranks, ranks);
    for (int round = 0; round < 5; ++round) {
      w.Put(others);
      Total(me, "round", 0);
      for (auto& [rank, weight] : others) weight = 1.0 / 3;
      w.Update(1 - 3 * (1.0 / 3), others);
      for (auto& [rank, weight] : others) weight = 1;
      EXPECT(All(w.values, 0.1f), "an average of equal values moved them");
      Total(me, "mixed", 0);
    }
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// On an irregular graph, at any time: own values, and all that is delivered, add up to the sum at
// the start, and so do the weights; a tensor of ones goes the way of the weights.
TEST_CASE("push-sum keeps mass and weight with shares in flight, and ends at the mean") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const auto& mine = kIrregular[static_cast<size_t>(me.rank())];
    const std::vector<int> in = HeardIn(kIrregular, me.rank());
    WindowRank x(me, {static_cast<float>(1 << me.rank()), 1}, in, mine, true, "x");
    const double part = 1.0 / static_cast<double>(mine.size() + 1);
    Ranks parts;
    for (const int rank : mine) parts.emplace_back(rank, part);
    std::mt19937 random(static_cast<unsigned>(me.rank()));
    for (int step = 0; step < 60; ++step) {
      if (random() % 3 != 0) x.Add(parts, part, true);
      if (random() % 3 != 0) x.Collect(true);
      if (step % 10 != 0) continue;
      Total(me, "stop", 0);
      const auto held = x.Look();
      EXPECT(std::abs(Total(me, "mass", held[0]) - 15) < 1e-5, "the sum was not kept");
      EXPECT(std::abs(Total(me, "ones", held[1]) - 4) < 1e-5, "the weights' sum was not kept");
      // Float beside double: their roundings come to 3e-7 mostly, beyond 1e-6 in one run of 400.
      EXPECT(std::abs(x.values[1] - x.window->share) < 1e-5, "the weight left the tensor of ones");
    }
    for (int step = 0; step < 60; ++step) {
      x.Add(parts, part, true);
      Total(me, "step", 0);
      x.Collect(true);
    }
    EXPECT(std::abs(x.values[0] / x.window->share - 3.75) < 1e-4, "the mean was not reached");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("shares that need no rounding: the sums are exact at every moment") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    ExactShares shares(me);
    for (int turn = 0; turn < 20; ++turn) {
      for (int more = 0; more < 5; ++more) {
        shares.Act(1);
        EXPECT(shares.SumsHold(), "a sum was not kept in turn " + std::to_string(turn));
      }
      shares.Refill();
      shares.Act(5);
      EXPECT(shares.SumsHold(), "a sum was not kept in turn " + std::to_string(turn));
      EXPECT(!shares.missed, "a share was given up");
      shares.Refill();
    }
    EXPECT(shares.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("who gives only if asked keeps its part until the other rank asks again") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    WindowRank w(me, std::vector<float>(kCount, 8), {from}, {to});
    const auto give = [&](float values, double share, uint64_t deliveries, int64_t kept) {
      Order order = w.Make(OrderKind::kAdd, {{to, 0.5}}, 0.5, true);
      order.if_asked = true;
      EXPECT(w.Do(std::move(order)).empty() && w.status.ok(), "a rank that lives was left out");
      EXPECT(All(w.values, values) && w.window->share == share, "not the part that is kept");
      Total(me, "given", 0);
      EXPECT(w.deliveries(from) == deliveries, "other deliveries than were asked for");
      EXPECT(me.runtime().counters()["window.unasked"].value() == kept, "miscounted");
      Total(me, "seen", 0);
    };
    give(4, 0.5, 1, 0);  // as at first
    give(4, 0.5, 1, 1);
    w.window->Ask(true);
    Total(me, "asked", 0);
    give(2, 0.25, 2, 1);
    w.Collect(true);  // asks for nothing by itself: who takes may want no more
    EXPECT(All(w.values, 8) && w.window->share == 1, "what was given is not what has come");
    give(8, 1, 0, 2);
    w.window->Ask(true);
    w.window->Ask(false);
    Total(me, "withdrawn", 0);
    give(8, 1, 0, 3);
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// Whatever is ordered, in any order, with any weights: a tensor of ones goes the way of the
// push-sum weights, and is the sum of what each rank gave, marked by an element of its own. A part
// once mixed in is never quite gone: all weights are positive.
TEST_CASE("the weight of push-sum is what became of ones") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const auto& to = kIrregular[static_cast<size_t>(me.rank())];
    const std::vector<int> from = HeardIn(kIrregular, me.rank());
    std::vector<double> marks(5, 0);
    marks[static_cast<size_t>(me.rank())] = marks[4] = 1;
    WindowRankOf<double> w(me, marks, from, to);
    bool moved = false;
    std::mt19937 random(static_cast<unsigned>(me.rank() + 1));
    const auto some = [&](const std::vector<int>& ranks) {
      Ranks weighted;
      for (const int rank : ranks) {
        if (random() % 4 != 0) weighted.emplace_back(rank, std::pow(0.5, 1 + random() % 3));
      }
      return weighted;
    };
    for (int turn = 0; turn < 300; ++turn) {
      const OrderKind kinds[] = {OrderKind::kPut, OrderKind::kAdd, OrderKind::kGet,
                                 OrderKind::kUpdate, OrderKind::kUpdate};
      const OrderKind kind = kinds[random() % 5];
      const bool gives = kind == OrderKind::kPut || kind == OrderKind::kAdd;
      const double self_weight = std::pow(0.5, random() % 3);
      Order order = w.Make(kind, some(gives ? to : from), self_weight, /*carry=*/true);
      order.reset = kind == OrderKind::kUpdate && random() % 2 == 0;
      const std::string what = " in turn " + std::to_string(turn) + ", order " +
                               std::to_string(static_cast<int>(kind));
      EXPECT(w.Do(std::move(order)).empty() && w.status.ok(), "something was given up" + what);
      const double ones = w.values[4];
      EXPECT(std::abs(ones - w.window->share) <= 1e-12 * ones, "the weight left the ones" + what);
      const double all = std::accumulate(w.values.begin(), w.values.begin() + 4, 0.0);
      EXPECT(std::abs(all - ones) <= 1e-12 * ones, "the parts left the ones" + what);
      moved = moved || ones != 1;
    }
    EXPECT(std::isnormal(w.values[4]), "they are beyond what can be compared");
    double others = 0;
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != me.rank()) others += w.values[static_cast<size_t>(rank)];
    }
    EXPECT(moved && others > 0, "nothing was mixed");
    Total(me, "end", 0);
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("slots begin as copies of the own values, or as zeros") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    const float own = static_cast<float>(me.rank() + 1);
    for (const bool zero : {true, false}) {
      WindowRank w(me, std::vector<float>(kCount, own), {from}, {to}, zero);
      EXPECT(w.deliveries(from) == 0, "something was delivered to a new window");
      EXPECT(All(w.Look(), zero ? own : 2 * own), "a look finds something else in a slot");
      w.Update(0.5, {{from, 0.5}});
      EXPECT(All(w.values, zero ? own / 2 : own), "a slot begins as something else");
      Total(me, "seen", 0);
      w.Add({{to, 1.0}});  // onto what lies there
      Total(me, "added", 0);
      w.Update(0, {{from, 1.0}});
      const float theirs = static_cast<float>(from + 1);
      EXPECT(All(w.values, zero ? theirs / 2 : own + theirs), "an accumulate has not added to it");
      EXPECT(w.Free().ok(), "the window cannot be freed");
    }
  });
  RequireNone(verdicts);
}

TEST_CASE("a name is one window's: a second one is refused, and the first goes on") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    WindowRank first(me, {static_cast<float>(me.rank())}, {from}, {to});
    first.Put({{to, 1.0}});
    const WindowRank second(me, {1, 2}, {from}, {to});
    EXPECT(second.status.code() == Code::kInvalidArgument && second.window == nullptr,
           second.status.message());
    first.Update(0, {{from, 1.0}});
    EXPECT(first.values[0] == static_cast<float>(from), "what was put into the first is gone");
    Total(me, "seen", 0);
    EXPECT(first.Add({{to, 1.0}}).empty() && first.status.ok(), first.status.message());
    Total(me, "added", 0);
    first.Collect();
    EXPECT(first.values[0] == static_cast<float>(2 * from + Next(me, -2)), "it does not go on");
    EXPECT(first.Free().ok(), "the first window cannot be freed");
    WindowRank third(me, {1, 2}, {from}, {to});
    EXPECT(third.status.ok(), "a name that is free again is not: " + third.status.message());
    EXPECT(third.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// A collect empties slots while three ranks add to them.
TEST_CASE("no collect ever sees half of what several ranks add") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    std::vector<int> others;
    Ranks all;
    for (const int by : {1, 2, 3})
      others.push_back(Next(me, by)), all.emplace_back(Next(me, by), 1.0);
    WindowRank w(me, std::vector<float>(kCount, 0), others, others);
    double given = 0, taken = 0;
    for (int step = 1; step <= 40; ++step) {
      std::fill(w.values.begin(), w.values.end(), static_cast<float>(step));
      given += step;
      auto add = StartOrder(me.runtime(), w.Make(OrderKind::kAdd, all, 0), true);
      EXPECT(add.ok() && me.Wait(*add.value()).ok(), "an order failed");
      EXPECT(All(w.values, 0), "what was given away is still here");
      for (int turn = 0; turn < 2; ++turn) w.Collect();
      EXPECT(All(w.values, w.values[0]), "torn: a slot has parts of two deliveries");
      taken += w.values[0];
    }
    Total(me, "end", 0);
    std::fill(w.values.begin(), w.values.end(), 0.0f);
    w.Collect();
    taken += w.values[0];
    EXPECT(Total(me, "taken", taken) == 3 * Total(me, "given", given), "something was lost");
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("what has been sent is kept nowhere") {
  constexpr int64_t kBytes = 4 << 20;
  WorldOptions options;
  options.local_size = 1;
  Verdicts verdicts;
  World(4, options).Run([&](Rank& me) {
    std::vector<int> others;
    for (int r = 0; r < me.size(); ++r)
      if (r != me.rank()) others.push_back(r);
    WindowRank w(me, std::vector<float>(kBytes / sizeof(float), 1), others, others);
    int64_t first = 0;
    for (const int to : others) {
      if (me.rank() != 0) break;
      EXPECT(w.Add({{to, 0.25}}, 0.5).empty() && w.status.ok(), w.status.message());
      // Without what all windows of this process take in.
      const int64_t now = me.runtime().memory_bytes() - SharedMemory::OwnedBytes();
      if (first == 0) first = now;
      EXPECT(now == first, std::to_string(now - first) + " bytes more for another rank");
    }
    Total(me, "sent", 0);
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("no update ever sees half of a put") {
  const int local_size = LocalSize();
  Verdicts verdicts;
  World(2, {.local_size = local_size}).Run([&](Rank& me) {
    const int other = Next(me);
    WindowRank w(me, std::vector<float>(kCount, 0), {other}, {other});
    for (int step = 1; step <= 200; ++step) {
      std::fill(w.values.begin(), w.values.end(), static_cast<float>(step));
      auto put = StartOrder(me.runtime(), w.Make(OrderKind::kPut, {{other, 1.0}}), true);
      w.Do(w.Make(OrderKind::kGet, {{other, 1.0}}));
      me.Wait(*put.value()).ok();
      w.Update(0, {{other, 1.0}});
      EXPECT(All(w.values, w.values[0]), "torn: a slot has parts of two deliveries");
    }
    Total(me, "end", 0);
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a mutex is one rank's at a time, and asked for in any order nobody waits for ever") {
  const int local_size = LocalSize();
  std::atomic<int> inside{0}, most{0};
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    std::vector<int> others;
    for (int r = 0; r < me.size(); ++r) {
      if (r != me.rank()) others.push_back(r);
    }
    WindowRank w(me, {1}, others, others);
    for (int step = 0; step < 20; ++step) {
      const Ranks both = {{(me.rank() + step) % 4, 1.0}, {(me.rank() + step + 2) % 4, 1.0}};
      EXPECT(w.Do(w.Make(OrderKind::kLock, {{0, 1.0}})).empty(), "a mutex was not granted");
      most = std::max(most.load(), ++inside);
      --inside;
      w.Do(w.Make(OrderKind::kUnlock, {{0, 1.0}}));
      EXPECT(w.Do(w.Make(OrderKind::kLock, both)).empty(), "two mutexes were not granted");
      w.Do(w.Make(OrderKind::kUnlock, both));
    }
    Total(me, "end", 0);
    EXPECT(w.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
  CHECK(most == 1);
}

TEST_CASE("ranks that disagree about a window all hear of it, and it can be made after that") {
  Verdicts verdicts;
  World(3).Run([&](Rank& me) {
    const int to = Next(me), from = Next(me, -1);
    const size_t count = me.rank() == 2 ? 3 : 2;
    WindowRank shape(me, std::vector<float>(count), {from}, {to});
    EXPECT(shape.status.code() == Code::kInvalidArgument &&
               shape.status.message().find("rank 2 float32 [3]") != std::string::npos,
           shape.status.message());
    WindowRank edge(me, {1}, {from}, me.rank() == 1 ? std::vector<int>{} : std::vector<int>{to});
    EXPECT(edge.status.message().find("rank 1 delivers to [], rank 2 hears of [1]") !=
               std::string::npos,
           edge.status.message());
    WindowRank self(me, {1}, {from}, {me.rank() == 0 ? 0 : to});
    EXPECT(self.status.code() == Code::kInvalidArgument, "a rank may not be its own neighbor");
    WindowRank good(me, {1}, {from}, {to});
    EXPECT(good.status.ok(), good.status.message());
    good.Put({{from, 1.0}});
    EXPECT(good.status.message().find("no such neighbor") != std::string::npos,
           good.status.message());
    EXPECT(good.Free().ok(), "the window cannot be freed");
    good.Put({{to, 1.0}});
    EXPECT(good.status.message().find("was freed") != std::string::npos, good.status.message());
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
