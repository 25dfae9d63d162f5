// Rounds when something goes wrong: messages lost, doubled and late, neighbors that are silent,
// come back, or are dead. Nobody waits longer than the time, nothing is half mixed, and of push-sum
// no share is lost or doubled.
#include <cmath>
#include <thread>

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

TEST_CASE("a share that was refused as late comes back, also when that is heard late") {
  std::atomic<Way> ways[2] = {Way::kOpen, Way::kOpen};
  WorldOptions options;
  options.local_size = 1;
  // Rank 1 goes on long before rank 0 gives up.
  options.configure_rank = [](int rank, Config& config) {
    config.gossip_time = rank == 0 ? milliseconds{4000} : milliseconds{200};
  };
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  const RoundsOf of{.graph = "gossip:graph=ring,mixing=push", .push_sum = true};
  Verdicts verdicts;
  World(2, options).Run([&](Rank& me) {
    RoundRank x(me, of, {8.0 + 8 * me.rank()});
    if (me.rank() == 1) {
      ways[1] = Way::kMute;  // what it sends is lost, answers as well
      EXPECT(x.Mix() == std::vector<int64_t>{0}, "a silent rank was heard");
    }
    Total(me, "closed", 0);
    if (me.rank() == 0) {
      std::thread opens([&] {  // once its message has been refused
        while (x.counted("peer.resent") == 0) std::this_thread::yield();
        ways[1] = Way::kOpen;
      });
      EXPECT(x.status.ok() && !x.Mix().empty(), "it was heard");
      opens.join();
    }
    Total(me, "refused", 0);
    for (int t = 0; t < 4; ++t) x.Mix();
    x.Do(OrderKind::kPublish);  // takes in what has come back
    EXPECT(Total(me, "mass", x.values()[0]) == 24, "mass was lost, or doubled");
    EXPECT(Total(me, "weights", x.share()) == 2, "so was the weight");
    EXPECT(x.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("a dead neighbor is left out, and the living go on in rounds") {
  const bool push_sum = GENERATE(false, true);
  const RoundsOf of{.graph = push_sum ? "gossip:graph=complete,mixing=push" : "gossip:graph=ring",
                    .push_sum = push_sum,
                    .dtype = DataType::kFloat64};
  Verdicts verdicts;
  World world(3, Patient(milliseconds{60'000}, 0));
  std::vector<std::unique_ptr<RoundRank>> ranks(3);
  world.Run([&](Rank& me) {
    auto& x = ranks[static_cast<size_t>(me.rank())];
    x = std::make_unique<RoundRank>(me, of, Values{static_cast<double>(me.rank())});
    Total(me, "made", 0);
  });
  world.MarkDead(2, "rank 2 was killed");
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
