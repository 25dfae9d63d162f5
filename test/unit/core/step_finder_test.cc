#include "runtime/core/step_finder.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using std::chrono::milliseconds;

TEST_CASE("a step lasts from its first tensor to the next step's") {
  StepFinder finder;
  const StepFinder::Clock::time_point start{};
  CHECK(!finder.Saw(1, 10, start));
  CHECK(!finder.Saw(2, 20, start + milliseconds(5)));
  CHECK(!finder.Saw(1, 10, start + milliseconds(8)));  // of unknown begin: none
  CHECK(!finder.Saw(2, 20, start + milliseconds(9)));
  CHECK(finder.Saw(1, 10, start + milliseconds(20)) == FoundStep{milliseconds(12), 30});
}

TEST_CASE("steps may begin with another tensor each time") {
  StepFinder finder;
  const StepFinder::Clock::time_point start{};
  finder.Saw(1, 1, start);
  finder.Saw(2, 2, start);
  finder.Saw(2, 2, start + milliseconds(1));
  finder.Saw(1, 1, start + milliseconds(2));
  CHECK(finder.Saw(1, 1, start + milliseconds(4)) == FoundStep{milliseconds(3), 3});
}

TEST_CASE("what never comes again has no steps") {
  StepFinder finder;
  for (uint64_t tensor = 0; tensor < 200000; ++tensor) REQUIRE(!finder.Saw(tensor, 1, {}));
}

}  // namespace
}  // namespace horon
