// Rounds of mixing without the agreement of all: the same bits as the negotiated op, and nobody
// waits for others than its own neighbors.
#include <atomic>
#include <thread>

#include "runtime/peer/round_slot.h"
#include "test/support/road.h"
#include "test/support/round_rank.h"
#include "test/support/window_rank.h"
#include "test/unit/ops/gossip/graphs.h"

namespace horon {
namespace {

using test::LocalSize;
using test::Rank;
using test::RequireNone;
using test::RoundRank;
using test::RoundsOf;
using test::Total;
using test::Values;
using test::Verdicts;
using test::World;

constexpr int64_t kCount = 70'001;  // several pieces of a message
constexpr int kRounds = 6;

struct Given {
  const char* graph;
  bool push_sum;
  int size;
};
const Given kGiven[] = {
    {"gossip:graph=ring", false, 4},
    {"gossip:graph=one_peer_exponential", false, 4},
    {"gossip:graph=one_peer_exponential", true, 3},
    {"gossip:graph=base", false, 5},
    {"gossip:graph=random_matching", false, 4},
    {"gossip:graph=star,mixing=push", true, 4},
    {"gossip:graph=static_exponential,mixing=push,lazy=1", true, 5},
};

// The same rounds, by the agreement of all.
class Negotiated {
 public:
  Negotiated(const RoundsOf& of, test::Bytes begin) : of_(of), bytes(std::move(begin)) {}
  Status Mix(Rank& me) {
    const auto count = static_cast<int64_t>(bytes.size()) / SizeOf(of_.dtype);
    HORON_TRY(
        me.Run(test::Tensor("values", of_.graph, {count}, of_.dtype), bytes.data(), bytes.data()));
    const auto one = test::Tensor("weight", of_.graph, {1}, DataType::kFloat64);
    return of_.push_sum ? me.Run(one, &share, &share) : Status::Ok();
  }

 private:
  RoundsOf of_;

 public:
  test::Bytes bytes;
  double share = 1;
};

TEST_CASE("rounds between peers have the bits of negotiated ones") {
  const int local_size = LocalSize();
  const DataType dtype =
      GENERATE(DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16, DataType::kFloat16);
  for (const Given& given : kGiven) {
    INFO(given.graph << " " << local_size << " " << NameOf(dtype));
    const RoundsOf of{.graph = given.graph, .push_sum = given.push_sum, .dtype = dtype};
    Verdicts verdicts;
    World(given.size, {.local_size = local_size}).Run([&](Rank& me) {
      RoundRank peers(me, of, test::Fractions(me.rank() + 1, kCount));
      EXPECT(peers.status.ok(), peers.status.message());
      Negotiated negotiated(of, peers.bytes);
      for (int t = 0; t < kRounds; ++t) {
        EXPECT(peers.round() == t, "a round is not counted");
        EXPECT(peers.Mix().empty() && peers.status.ok(), peers.status.message());
        EXPECT(negotiated.Mix(me).ok(), "the negotiated op failed");
        EXPECT(peers.bytes == negotiated.bytes, "other bits in round " + std::to_string(t));
        EXPECT(peers.share() == negotiated.share, "another weight");
      }
      EXPECT(peers.counted("round.folded") == 0 && peers.counted("round.late") == 0, "faults");
      EXPECT(peers.Free().ok(), "the window cannot be freed");
    });
    RequireNone(verdicts);
  }
}

// W(t) ... W(0) x, in double; no rank waits for the others between two rounds.
std::vector<Values> Predicted(const gossip::Graph& graph, std::vector<Values> x, int rounds) {
  for (int t = 0; t < rounds; ++t) {
    const gossip::Round round = graph.At(t);
    std::vector<Values> next = x;
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t e = 0; e < x[i].size(); ++e) {
        next[i][e] = round.self[i] * x[i][e];
        for (const auto& from : round.from[i])
          next[i][e] += from.weight * x[static_cast<size_t>(from.rank)][e];
      }
    }
    x = std::move(next);
  }
  return x;
}

TEST_CASE("after t rounds values are what the matrices of the graph say") {
  const int local_size = LocalSize();
  for (const Given& given : kGiven) {
    INFO(given.graph << " " << local_size);
    std::vector<Values> start;
    for (int r = 0; r < given.size; ++r) {
      start.push_back(test::Fractions(r + 1, 100));
      start.back().push_back(1);  // goes the way of the weight
    }
    const auto graph = gossip::MakeGraph(
        std::string(given.graph).substr(std::string("gossip:").size()), given.size);
    const auto want = Predicted(graph, start, 40);
    Verdicts verdicts;
    World(given.size, {.local_size = local_size}).Run([&](Rank& me) {
      const auto here = static_cast<size_t>(me.rank());
      RoundRank x(me, {given.graph, given.push_sum, 0, DataType::kFloat64}, start[here]);
      for (int t = 0; t < 40; ++t) EXPECT(x.Mix().empty(), x.status.message());
      EXPECT(test::Near(DataType::kFloat64, x.values(), want[here]), "not what is predicted");
      if (given.push_sum) EXPECT(x.share() == x.values().back(), "the weight went another way");
      EXPECT(x.Free().ok(), "the window cannot be freed");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("an input is taken first, and one rank alone mixes with nobody") {
  Verdicts verdicts;
  World(1).Run([&](Rank& me) {
    RoundRank x(me, {}, {1, 2, 3});
    EXPECT(x.status.ok() && x.Mix().empty() && x.status.ok(), x.status.message());
    EXPECT((x.values() == Values{1, 2, 3}), "values changed");
    const std::vector<float> input = {4, 5, 6};
    Order order = x.Make();
    order.input = reinterpret_cast<const std::byte*>(input.data());
    const auto work = StartOrder(me.runtime(), std::move(order), true);
    EXPECT(work.ok() && me.Wait(*work.value()).ok(), "the order failed");
    EXPECT((x.values() == Values{4, 5, 6}) && x.round() == 2, "the input was not taken");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// Rank 0 is not in its round while rank 1, which hears nobody, goes on: one round's message is
// parked, the next one waits at its sender, and both are mixed in their rounds.
TEST_CASE("a message that comes early waits for its round") {
  const int local_size = LocalSize();
  const std::string gives = "1>0*0.5;0>0*0.5;1>1*1";
  const std::string graph =
      "gossip:graph=custom,n=2,edges=" + gives + "/" + gives + "/0>1*0.5;1>1*0.5;0>0*1";
  Verdicts verdicts;
  World(2, {.local_size = local_size}).Run([&](Rank& me) {
    RoundRank x(me, {.graph = graph}, {static_cast<double>(8 * me.rank())});
    EXPECT(x.status.ok(), x.status.message());
    std::shared_ptr<Work> second;
    const float other = 32;
    if (me.rank() == 1) {
      EXPECT(x.Mix().empty() && x.round() == 1, "the first message was not taken");
      Order order = x.Make();
      order.input = reinterpret_cast<const std::byte*>(&other);
      second = StartOrder(me.runtime(), std::move(order), true).value();
      EXPECT(!second->done(), "there is no room for another message");
    }
    Total(me, "early", 0);
    if (me.rank() == 0) {
      EXPECT(x.Mix().empty() && x.values()[0] == 4, "not what was sent in the first round");
      EXPECT(x.Mix().empty() && x.values()[0] == 18, "not what was sent in the second one");
    } else {
      EXPECT(x.Wait(*second).empty() && x.round() == 2, x.status.message());
    }
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// Two pairs with no link between them. One begins its rounds when the other has done all of its
// own.
TEST_CASE("a rank that does not come delays its own neighbors only") {
  const int local_size = LocalSize();
  std::string graph = "gossip:graph=custom,n=4,edges=0>2;2>0;1>3;3>1";  // then never again
  for (int t = 1; t <= 50; ++t) graph += "/0>1;1>0;2>3;3>2";
  std::atomic<int> done{0};
  Verdicts verdicts;
  World(4, {.local_size = local_size}).Run([&](Rank& me) {
    RoundRank x(me, {.graph = graph, .first = 1}, {static_cast<double>(me.rank())});
    EXPECT(x.status.ok(), x.status.message());
    const bool held = me.rank() == 3;  // 2 is in its first round all the while
    while (held && done.load() < 2) std::this_thread::yield();
    for (int t = 0; t < 50; ++t) EXPECT(x.Mix().empty(), x.status.message());
    if (me.rank() < 2) done.fetch_add(1);
    EXPECT(x.values()[0] == (me.rank() < 2 ? 0.5 : 2.5), "not the mean of the pair");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("ranks that disagree about rounds all hear both views") {
  Verdicts verdicts;
  World(3).Run([&](Rank& me) {
    const bool odd = me.rank() == 2;
    const auto says = [&](const RoundsOf& of, const std::string& what, size_t count = 2) {
      const RoundRank x(me, of, Values(count));
      EXPECT(x.status.code() == Code::kInvalidArgument &&
                 x.status.message().find(what) != std::string::npos,
             x.status.message());
    };
    const std::string ring = "gossip:graph=ring", other = "gossip:graph=ring_one_way";
    says({.graph = odd ? other : ring},
         "rank 0 mixes by gossip:graph=ring from round 0, rank 2 by gossip:graph=ring_one_way "
         "from round 0");
    says({.graph = "gossip:graph=one_peer_exponential" + std::string(odd ? ",rotate=1" : "")},
         "rotate=1 from round 0");
    says({.graph = ring, .first = odd ? 7 : 6},
         "from round 6, rank 2 by gossip:graph=ring from round 7");
    says({.graph = ring, .push_sum = odd}, "rank 2 by gossip:graph=ring with push-sum");
    says({.graph = ring}, "rank 2 float32 [3]", odd ? 3 : 2);
    says({.graph = ring, .dtype = odd ? DataType::kFloat64 : DataType::kFloat32},
         "rank 2 float64 [2]");
    RoundRank good(me, {.graph = ring, .first = 6}, {1});
    EXPECT(good.status.ok() && good.Mix().empty() && good.round() == 7, good.status.message());
    EXPECT(good.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("rounds and the orders of other windows do not mix") {
  Verdicts verdicts;
  World(2).Run([&](Rank& me) {
    const int other = 1 - me.rank();
    RoundRank x(me, {.graph = "gossip:graph=ring"}, {1});
    test::WindowRank w(me, {1}, {other}, {other});
    const auto refused = [&](Order order, const std::string& what) {
      const auto work = StartOrder(me.runtime(), std::move(order), true);
      EXPECT(work.status().code() == Code::kInvalidArgument &&
                 work.status().message().find(what) != std::string::npos,
             work.status().message());
    };
    for (const OrderKind kind : {OrderKind::kPut, OrderKind::kUpdate, OrderKind::kLock,
                                 OrderKind::kPair, OrderKind::kStep})
      refused(x.Make(kind), "mixes in rounds");
    refused(w.Make(OrderKind::kRound, {}), "was made without rounds");
    Order named = x.Make();
    named.ranks = {{other, 1.0}};
    refused(std::move(named), "names no ranks");
    const auto unusable = [&](const std::string& graph, bool push_sum, const std::string& what) {
      WindowShape shape;
      const Status status = SetRounds(graph, me.size(), me.rank(), 0, push_sum, &shape);
      EXPECT(status.message().find(what) != std::string::npos, status.message());
    };
    unusable("gossip:graph=nonsense", false, "there is no graph");
    unusable("gossip:graph=custom,n=3,edges=0>1;1>2;2>0", false, "for 3 participants");
    unusable("gossip:graph=ring,hierarchical=1", false, "hierarchical");
    unusable("gossip:graph=custom,n=2,edges=0>1*0.5;1>1*0.5;1>0*1", true, "columns that sum to 1");
    unusable("gossip:graph=custom,n=2,edges=1>0*0.5;1>1*0.5;0>1*1", false, "rows that sum to 1");
    EXPECT(w.Free().ok() && x.Free().ok(), "a window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a message of a round that this graph has not is an error with both views") {
  Verdicts verdicts;
  World(2).Run([&](Rank& me) {
    RoundRank x(
        me,
        {.graph =
             "gossip:graph=custom,n=2,edges=0>1*0.5;1>0*0.5;0>0*0.5;1>1*0.5/0>1*0.5;1>1*0.5;0>0*1"},
        {1});
    EXPECT(x.status.ok(), x.status.message());
    if (me.rank() == 0) {
      const float value = 1;
      const RoundSlot slot(x.window->slot(1));
      EXPECT(slot.TryPut(3, 1, reinterpret_cast<const std::byte*>(&value)) == RoundSlot::Put::kDone,
             "it was not put");
      x.Mix();
      EXPECT(x.status.code() == Code::kInvalidArgument &&
                 x.status.message().find("rank 1 sent its round 3") != std::string::npos &&
                 x.status.message().find("was in round 0") != std::string::npos,
             x.status.message());
    }
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

struct SlotOf {
  SlotOf() : memory(WindowMemory::Make(1, sizeof(int64_t) * 64).value()), slot(memory->slot(0)) {}
  RoundSlot::Put Put(int64_t round) {
    const std::vector<int64_t> values(64, round);
    return slot.TryPut(round, static_cast<double>(round),
                       reinterpret_cast<const std::byte*>(values.data()));
  }
  std::shared_ptr<WindowMemory> memory;
  RoundSlot slot;
};

TEST_CASE("a slot takes one round's message at a time, and none that it was closed for") {
  using Put = RoundSlot::Put;
  SlotOf s;
  s.slot.Free(3);
  CHECK(s.slot.round() == -1);
  CHECK(s.Put(2) == Put::kLate);
  CHECK(s.slot.TakeLate() == 1);
  CHECK(s.slot.TakeLate() == 0);
  CHECK(s.Put(4) == Put::kDone);
  CHECK(s.slot.round() == 4);
  CHECK(s.slot.share() == 4);
  CHECK(s.Put(5) == Put::kFull);
  CHECK_FALSE(s.slot.Close(5));
  s.slot.Free(5);
  CHECK(s.slot.Close(8));
  CHECK(s.slot.Close(6));  // never back
  CHECK(s.slot.next() == 8);
  CHECK(s.Put(7) == Put::kLate);
  CHECK(s.Put(8) == Put::kDone);
}

// Each message is either taken, whole, or refused: whatever the other side does meanwhile.
TEST_CASE("a message is taken once or known as late, while its slot is closed all the time") {
  SlotOf s;
  s.slot.Free(0);
  constexpr int64_t kMessages = 20'000;
  int64_t given = 0, late = 0, taken = 0;
  bool whole = true;
  std::atomic<bool> over{false};
  std::thread sender([&] {
    for (int64_t round = 0; round < kMessages;) {
      const RoundSlot::Put put = s.Put(round);
      if (put == RoundSlot::Put::kFull) continue;
      ++(put == RoundSlot::Put::kDone ? given : late);
      ++round;
    }
    over = true;
  });
  for (int64_t next = 0; !over.load() || s.slot.round() >= 0;) {
    const int64_t there = s.slot.round();
    if (there < 0) {
      // Goes on without it, as one whose time is over.
      if (next % 3 == 0 && s.slot.Close(s.slot.next() + 1)) ++next;
      continue;
    }
    const auto* values = reinterpret_cast<const int64_t*>(s.slot.values());
    for (int i = 0; i < 64; ++i) whole = whole && values[i] == there;
    whole = whole && s.slot.share() == static_cast<double>(there);
    ++taken, ++next;
    s.slot.Free(there + 1);
  }
  sender.join();
  CHECK(whole);
  CHECK(taken == given);
  CHECK(given + late == kMessages);
  CHECK(s.slot.TakeLate() == late);
  CHECK(given > 0);
}

}  // namespace
}  // namespace horon
