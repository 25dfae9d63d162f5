#include "runtime/core/standstill.h"

#include <unistd.h>

#include "test/support/catch.h"

namespace horon {
namespace {

using std::chrono::milliseconds;

Standstill::Look Look(uint64_t cycles, bool awaited, int ms) {
  return {cycles, awaited, Standstill::Clock::time_point{} + milliseconds{ms}};
}

TEST_CASE("nobody moves the runtime although a thread waits: said once, after the patience") {
  Standstill standstill(milliseconds{3000});
  CHECK(!standstill.See(Look(7, true, 1000)));
  CHECK(standstill.See(Look(7, true, 2000)));  // perhaps it sleeps
  CHECK(!standstill.MustSay());
  CHECK(standstill.See(Look(7, true, 4500)));
  CHECK(standstill.standing_for() == milliseconds{3500});
  CHECK(standstill.MustSay());
  CHECK(!standstill.MustSay());
  CHECK(!standstill.See(Look(8, true, 5000)));  // it moves again
  CHECK(standstill.standing_for() == milliseconds{0});
  CHECK(standstill.See(Look(8, true, 6000)));
  CHECK(!standstill.MustSay());
  CHECK(standstill.MustSay(true));
}

TEST_CASE("a runtime that nobody waits for may rest as long as it likes") {
  Standstill standstill(milliseconds{3000});
  for (int ms = 0; ms < 60'000; ms += 5000) {
    CHECK(!standstill.See(Look(7, false, ms)));
    CHECK(!standstill.MustSay());
  }
  CHECK(!standstill.See(Look(7, true, 60'000)));  // from now on it counts
  CHECK(standstill.standing_for() == milliseconds{0});
}

TEST_CASE("where nobody is given up for silence, a standstill is one all the same") {
  Standstill standstill(milliseconds{0});
  CHECK(!standstill.See(Look(7, true, 1000)));
  CHECK(!standstill.MustSay());
  CHECK(standstill.See(Look(7, true, 7000)));
  CHECK(!standstill.MustSay());
  CHECK(standstill.See(Look(7, true, 11'000)));
  CHECK(standstill.MustSay());
}

TEST_CASE("a standstill is described by thread, state and what is waited for") {
  Activity activity;
  activity.waits = {"0/a", "0/b"};
  activity.last = "0/b";
  activity.last_ms = 12'000;
  const std::string sentence = DescribeStandstill(milliseconds{10'500}, gettid(), activity);
  CHECK(sentence.starts_with("the runtime has not moved for 10 s: thread " +
                             std::to_string(gettid()) + " (horon_unit_test) computes; "));
  CHECK(sentence.find("waits for 0/a, 0/b, and submitted 0/b last, 12 s ago") != std::string::npos);
}

}  // namespace
}  // namespace horon
