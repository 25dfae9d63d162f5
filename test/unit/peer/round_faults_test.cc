// Rounds when something goes wrong: messages lost, doubled and late, neighbors that are silent,
// come back, or are dead. Nobody waits longer than the time, nothing is half mixed, and of push-sum
// no share is lost or doubled.
#include <cmath>
#include <thread>

#include "runtime/peer/round_slot.h"
#include "test/support/road.h"
#include "test/support/round_rank.h"
#include "test/support/unreliable.h"
#include "test/support/window_rank.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using test::Between;
using test::Muted;
using test::Rank;
using test::RequireNone;
using test::RoundRank;
using test::RoundsOf;
using test::Total;
using test::Values;
using test::Verdicts;
using test::Way;
using test::World;
using test::WorldOptions;

WorldOptions Patient(milliseconds patience, int local_size) {
  WorldOptions options;
  options.local_size = local_size;
  options.configure = [=](Config& config) { config.gossip_time = patience; };
  return options;
}

TEST_CASE("lost, doubled, delayed and reordered messages change no bit of a round") {
  const int64_t count = GENERATE(3, 70'001);
  const bool push_sum = GENERATE(false, true);
  const RoundsOf of{.graph = push_sum ? "gossip:graph=star,mixing=push" : "gossip:graph=ring",
                    .push_sum = push_sum};
  Verdicts verdicts;
  World(3, Between(milliseconds{8000}, 3, 15, 6)).Run([&](Rank& me) {
    RoundRank x(me, of, test::Fractions(me.rank() + 1, count));
    test::Bytes same = x.bytes;
    for (int t = 0; t < 8; ++t) {
      EXPECT(x.Mix().empty() && x.status.ok(), "a message was given up: " + x.status.message());
      me.Run(test::Tensor("negotiated", of.graph, {count}), same.data(), same.data()).ok();
      EXPECT(x.bytes == same, "other bits in round " + std::to_string(t));
    }
    if (push_sum) EXPECT(std::abs(Total(me, "weights", x.share()) - 3) < 1e-12, "weights moved");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

constexpr milliseconds kPatience{1500};

// Rank 2 takes no part for a while, comes back where the others were, and then mixes with them
// again.
void GoOnWithout(bool push_sum, int local_size) {
  const RoundsOf of{.graph = push_sum ? "gossip:graph=complete,mixing=push" : "gossip:graph=ring",
                    .push_sum = push_sum,
                    .dtype = DataType::kFloat64};
  const auto at = [](const RoundRank& x) { return x.values()[0]; };
  Verdicts verdicts;
  World(3, Patient(kPatience, local_size)).Run([&](Rank& me) {
    RoundRank x(me, of, {std::pow(4.0, me.rank())});  // 1, 4, 16
    EXPECT(x.status.ok(), x.status.message());
    const auto begun = std::chrono::steady_clock::now();
    for (int t = 0; t < 5 && me.rank() != 2; ++t)
      EXPECT(x.Mix() == std::vector<int64_t>{2}, "it was not named: " + x.status.message());
    if (me.rank() != 2) {
      // Which of the two waits for the other while that waits for rank 2 is not said.
      EXPECT(std::chrono::steady_clock::now() - begun < 5 * kPatience,
             "it was waited for in each round");
      EXPECT(x.counted("round.folded") >= 4, "it was not counted");
      if (!push_sum) EXPECT(x.share() == 1 && at(x) >= 1 && at(x) <= 4, "not a mean of the two");
    }
    Total(me, "gone on", 0);
    if (!push_sum) EXPECT(Total(me, "sum", at(x)) == 21, "the sum moved");
    // It finds messages of a round that is over, is late for that, and goes on where the others
    // are.
    if (me.rank() == 2) x.Mix();
    EXPECT(x.round() == 5, "the ranks are in different rounds");
    if (!push_sum) EXPECT(me.rank() != 2 || at(x) == 16, "it was mixed at one end");
    Total(me, "back", 0);
    for (int t = 0; t < 12; ++t)
      EXPECT(x.Mix().empty() && x.status.ok(), "one was left out: " + x.status.message());
    EXPECT(std::abs(Total(me, "mass", at(x)) - 21) < 1e-9, "the sum moved");
    EXPECT(std::abs(Total(me, "weights", x.share()) - 3) < 1e-9, "the weights' sum moved");
    EXPECT(std::abs(at(x) / x.share() - 7) < 1e-3, "the ranks do not meet again");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("the others go on without a silent neighbor, and with it when it is back") {
  GoOnWithout(false, GENERATE(0, 1));
}

TEST_CASE("of push-sum no share is lost or doubled where a neighbor is silent and comes back") {
  GoOnWithout(true, GENERATE(0, 1));
}

// What a rank has, with what lies in its slots: (values, weights).
std::pair<double, double> Held(const RoundRank& x) {
  double values = x.values()[0], weights = x.share();
  for (const int from : x.window->shape().in) {
    const RoundSlot slot(x.window->slot(from));
    if (slot.round() < 0) continue;
    for (const auto& [rank, weight] : x.window->shape().rounds->row(slot.round()).from) {
      if (rank != from) continue;
      values += weight * *reinterpret_cast<const double*>(slot.values());
      weights += weight * slot.share();
    }
  }
  return {values, weights};
}

// Whether that comes to these sums, once nothing is under way any more between the ranks.
bool SumsReach(Rank& me, RoundRank& x, double mass, double weights) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  for (;;) {
    x.Do(OrderKind::kPublish);  // takes in what came back
    Total(me, "at rest", 0);
    const auto held = Held(x);
    const double sum = Total(me, "mass", held.first), of_weights = Total(me, "w", held.second);
    if (std::abs(sum - mass) < 1e-9 && std::abs(of_weights - weights) < 1e-9) return true;
    const bool over = me.rank() == 0 && std::chrono::steady_clock::now() > until;
    if (Total(me, "over", over ? 1 : 0) > 0) return false;
  }
}

// In one round rank 2 would hear rank 0, in the next one rank 1: both shares lie there when it
// hears that these rounds are over.
TEST_CASE("shares of rounds that a rank skips are taken in all the same") {
  const int local_size = GENERATE(0, 1);
  const RoundsOf of{
      .graph = "gossip:graph=one_peer_exponential", .push_sum = true, .dtype = DataType::kFloat64};
  Verdicts verdicts;
  World(3, Patient(milliseconds{400}, local_size)).Run([&](Rank& me) {
    RoundRank x(me, of, {std::pow(4.0, me.rank())});
    for (int t = 0; t < 6 && me.rank() != 2; ++t) x.Mix();
    // Between nodes one more waits at rank 2 for its place, and counts when that takes it.
    if (local_size == 0) EXPECT(SumsReach(me, x, 21, 3), "a share is lost while one is silent");
    Total(me, "gone on", 0);
    for (int t = 0; t < 2 && me.rank() == 2; ++t) x.Mix();
    EXPECT(me.rank() != 2 || (x.round() >= 4 && x.counted("round.late") > 0),
           "it does not know where the others are, or took in no share late");
    Total(me, "back", 0);
    for (int t = 0; t < 12; ++t) x.Mix();
    EXPECT(SumsReach(me, x, 21, 3), "the sum moved");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// Questions to rank 1 are lost, or its answers: rank 0 does not know what became of its share.
TEST_CASE("a share that nobody knows of is in one place in the end") {
  const int muted = GENERATE(0, 1);
  std::atomic<Way> ways[2] = {Way::kOpen, Way::kOpen};
  WorldOptions options = Between(kPatience, 0, 0, 0);
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  const std::string gives = "0>1*0.5;0>0*0.5;1>1*1";
  const RoundsOf of{
      .graph = "gossip:graph=custom,n=2,edges=" + gives + "/" + gives + "/1>0*0.5;1>1*0.5;0>0*1",
      .push_sum = true};
  Verdicts verdicts;
  World(2, options).Run([&](Rank& me) {
    RoundRank x(me, of, {8});
    EXPECT(x.status.ok(), x.status.message());
    if (me.rank() == 0) {
      ways[muted] = Way::kMute;
      EXPECT(x.Mix() == std::vector<int64_t>{1}, "it was not named");
      EXPECT(x.values()[0] == 4 && x.share() == 0.5, "what it may have is here too");
      ways[muted] = Way::kOpen;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
      while (x.counted("peer.late") == 0 && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
    }
    Total(me, "heard", 0);
    if (me.rank() == 1) EXPECT(x.Mix().empty() && x.values()[0] == 12, "it is not there");
    EXPECT(x.share() == (me.rank() == 0 ? 0.5 : 1.5), "nor is its weight");
    EXPECT(x.Mix().empty(), "they do not go on: " + x.status.message());
    EXPECT(Total(me, "mass", x.values()[0]) == 16, "mass was lost, or doubled");
    EXPECT(Total(me, "weights", x.share()) == 2, "so was the weight");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

// No answer of rank 1 gets through before both have gone on, and each has closed its round.
TEST_CASE("a share that was refused as late comes back, also when that is heard later") {
  std::atomic<Way> ways[2] = {Way::kOpen, Way::kMute};
  WorldOptions options = Between(kPatience, 0, 0, 0);
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  const RoundsOf of{
      .graph = "gossip:graph=ring,mixing=push", .push_sum = true, .dtype = DataType::kFloat64};
  Verdicts verdicts;
  World(2, options).Run([&](Rank& me) {
    RoundRank x(me, of, {me.rank() == 0 ? 8.0 : 16.0});
    EXPECT(x.status.ok(), x.status.message());
    if (me.rank() == 1) x.window->unheard.insert(0);  // it does not wait
    if (me.rank() == 1) EXPECT(x.Mix() == std::vector<int64_t>{0}, "a silent rank was heard");
    Total(me, "closed", 0);
    if (me.rank() == 0) {
      EXPECT(x.Mix() == std::vector<int64_t>{1}, "a mute rank was heard");
      EXPECT(x.values()[0] == 4 && x.share() == 0.5, "what it may have is here too");
    }
    Total(me, "open", 0);
    if (me.rank() == 0) ways[1] = Way::kOpen;
    EXPECT(SumsReach(me, x, 24, 2), "a share was lost, or doubled");
    EXPECT(x.values()[0] == (me.rank() == 0 ? 8 : 16) && x.share() == 1, "it is elsewhere");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a dead neighbor is left out, and the living go on in rounds") {
  const bool push_sum = GENERATE(false, true);
  const RoundsOf of{.graph = push_sum ? "gossip:graph=complete,mixing=push" : "gossip:graph=ring",
                    .push_sum = push_sum,
                    .dtype = DataType::kFloat64};
  WorldOptions options = Patient(milliseconds{60'000}, GENERATE(0, 1));
  options.network_outlives = true;
  options.losses = std::make_shared<Losses>();
  Verdicts verdicts;
  World world(3, options);
  std::vector<std::unique_ptr<RoundRank>> ranks(3);
  world.Run([&](Rank& me) {
    auto& x = ranks[static_cast<size_t>(me.rank())];
    x = std::make_unique<RoundRank>(me, of, Values{static_cast<double>(me.rank())});
    Total(me, "made", 0);
  });
  world.MarkDead(2, "rank 2 was killed");
  options.losses->Report(2, "rank 2 was killed");
  world.Run([&](Rank& me) {
    if (me.rank() == 2) return;
    RoundRank& x = *ranks[static_cast<size_t>(me.rank())];
    for (int t = 0; t < 30; ++t)
      EXPECT(x.Mix() == std::vector<int64_t>{2}, "not left out: " + x.status.message());
    EXPECT(std::abs(x.values()[0] - 0.5) < 1e-6 && std::abs(x.share() - 1) < 1e-12,
           "the living have not met at their mean");
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
