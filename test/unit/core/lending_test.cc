// Blocking calls run the cycle themselves, and leave the background thread asleep.
#include <algorithm>
#include <string>

#include "test/support/steady.h"

namespace horon {
namespace {

using test::Rank;
using test::RequireNone;
using test::Verdicts;
using test::World;
using test::WorldOptions;

TEST_CASE("lending: a loop of blocking calls between nodes leaves background threads asleep") {
  constexpr int kBatches = 40, kCalls = 50, kRanks = 2;
  WorldOptions apart;
  apart.local_size = 1;
  Verdicts verdicts;
  World world(kRanks, apart);
  world.Run([&](Rank& me) {
    const Doorbell& bell = world.bell(me.rank());
    // It is woken where it has slept for long, so on a busy machine some batches tell nothing.
    uint32_t fewest = kCalls;
    for (int batch = 0; batch < kBatches; ++batch) {
      const uint32_t before = bell.ticket();
      for (int call = 0; call < kCalls; ++call) {
        std::vector<float> values(1, 1);
        EXPECT(me.Reduce("x", "sum", values).ok() && values[0] == kRanks, "wrong sum");
      }
      fewest = std::min(fewest, bell.ticket() - before);
    }
    EXPECT(fewest < kCalls / 4, "woken " + std::to_string(fewest) + " times at best");
  });
  RequireNone(verdicts);
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

}  // namespace
}  // namespace horon
