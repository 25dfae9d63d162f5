// AdaptiveSpin: looking that brings nothing is given up, and tried again now and then.
#include "runtime/core/adaptive_spin.h"

#include "test/support/catch.h"

namespace horon {
namespace {

int Looks(AdaptiveSpin& spin, int times) {
  int looks = 0;
  for (int i = 0; i < times; ++i) {
    if (!spin.Due()) continue;
    ++looks;
    spin.Learn(false);
  }
  return looks;
}

TEST_CASE("looking that brings nothing is given up but for one time in sixteen") {
  AdaptiveSpin spin;
  CHECK(Looks(spin, AdaptiveSpin::kMisses) == AdaptiveSpin::kMisses);
  CHECK(Looks(spin, 10 * AdaptiveSpin::kEvery) == 10);
}

TEST_CASE("looking that brings something goes on each time") {
  AdaptiveSpin spin;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(spin.Due());
    spin.Learn(i % AdaptiveSpin::kMisses == 0);  // and some times it brings nothing
  }
}

TEST_CASE("one look that brings something begins anew") {
  AdaptiveSpin spin;
  Looks(spin, 100);
  while (!spin.Due()) {
  }
  spin.Learn(true);
  CHECK(Looks(spin, AdaptiveSpin::kMisses) == AdaptiveSpin::kMisses);
}

}  // namespace
}  // namespace horon
