#include "runtime/base/time_use.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/phases.h"
#include "test/support/catch.h"

namespace horon {
namespace {

using Stage = TimeUse::Stage;

class Use {
 private:
  Counters counters_;

 public:
  TimeUse use{counters_};
  int64_t operator[](const std::string& part) { return counters_["explain." + part].value(); }
  // Until the clock shows another time: whatever lasts, lasts longer than nothing.
  static void Pass() {
    for (const int64_t now = SteadyNow(); SteadyNow() <= now;) {
    }
  }
  int64_t all() {
    const auto rows = counters_.Snapshot();
    return std::accumulate(rows.begin(), rows.end(), int64_t{0}, [](int64_t sum, const auto& row) {
      return sum + (row.first.starts_with("explain.ns.") ? row.second : 0);
    });
  }
};

TEST_CASE("what passes before a tensor comes again is nobody's") {
  Use use;
  use.use.See(Stage::kMoving);
  {
    const TimeUse::Waiting waiting(&use.use);
    Use::Pass();
  }
  use.use.See(Stage::kNothing);
  use.use.FinishedBucket(5, 7);
  use.use.Finished(1, 100, true);
  CHECK(use.all() == 0);
  CHECK(use["waits"] + use["buckets"] + use["tensors"] + use["bytes"] == 0);
}

TEST_CASE("every moment goes to one part, by what is done and whether the program waits") {
  Use use;
  use.use.Begin();
  const int64_t begun = SteadyNow();
  Use::Pass();
  use.use.See(Stage::kNegotiation);  // until here the program's own
  Use::Pass();
  {
    const TimeUse::Waiting waiting(&use.use);
    CHECK(use["ns.hidden_negotiation"] > 0);
    Use::Pass();
    use.use.See(Stage::kOthers);
    Use::Pass();
    use.use.See(Stage::kMoving);
    Use::Pass();
    use.use.See(Stage::kNothing);
    Use::Pass();
  }
  for (const char* part : {"program", "negotiation", "others", "moving", "queue"}) {
    INFO(part);
    CHECK(use[std::string("ns.") + part] > 0);
  }
  CHECK(use["ns.hidden_others"] + use["ns.hidden_moving"] == 0);
  CHECK(use["waits"] == 1);
  const int64_t charged = use.all();
  CHECK(charged <= SteadyNow() - begun + 1000000);
  Use::Pass();  // nothing changes any more: what the program does at its end is not counted
  CHECK(use.all() == charged);
}

TEST_CASE("of two threads that wait at once the time counts once") {
  Use use;
  use.use.Begin();
  use.use.See(Stage::kMoving);
  const int64_t begun = SteadyNow();
  {
    const TimeUse::Waiting first(&use.use);
    Use::Pass();
    {
      const TimeUse::Waiting second(&use.use);
      Use::Pass();
    }
    CHECK(use["ns.moving"] == 0);  // it still lasts
    Use::Pass();
  }
  CHECK(use["ns.moving"] > 0);
  CHECK(use["ns.moving"] <= SteadyNow() - begun);
  CHECK(use["waits"] == 2);
}

TEST_CASE("tensors count from their second run on, their names once") {
  Use use;
  use.use.Begin();
  for (uint64_t run = 1; run <= 5; ++run) use.use.Finished(run, 100, run > 3);
  use.use.Finished(2, 11, false);
  use.use.FinishedBucket(5, 7);
  use.use.FinishedBucket(1, 1);
  CHECK(use["tensors"] == 5);
  CHECK(use["bytes"] == 411);
  CHECK(use["locked"] == 2);
  CHECK(use["distinct"] == 2);
  CHECK(use["distinct_bytes"] == 111);
  CHECK(use["buckets"] == 2);
  CHECK(use["ns.copying"] == 6);
  CHECK(use["ns.reducing"] == 8);
}

// The quietest of many short rounds, as on a machine that has no other work.
TEST_CASE("a change of what is done costs little", "[.][cost]") {
  Use use;
  use.use.Begin();
  double least = 1e9;
  constexpr int kRounds = 5000;
  for (int round = 0; round < 400; ++round) {
    const int64_t begun = SteadyNow();
    for (int i = 0; i < kRounds; ++i) use.use.See(i % 2 == 0 ? Stage::kMoving : Stage::kOthers);
    least = std::min(least, static_cast<double>(SteadyNow() - begun) / kRounds);
  }
  WARN(least << " ns a change");
  CHECK(least < 150);
}

}  // namespace
}  // namespace horon
