#include "runtime/core/schedule_finder.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using Ids = RecycledVector<uint64_t>;
using Batches = ScheduleFinder::Batches;

TEST_CASE("a schedule is found when the same has run three times") {
  ScheduleFinder finder;
  CHECK(finder.Observe({1, 2}).empty());
  CHECK(finder.Observe({3}).empty());
  CHECK(finder.Observe({1, 2}).empty());
  CHECK(finder.Observe({3}).empty());
  CHECK(finder.Observe({1, 2}).empty());
  CHECK(finder.Observe({3}) == Batches{{1, 2}, {3}});
}

TEST_CASE("what was ever agreed apart stays apart") {
  ScheduleFinder finder;
  finder.set_periods(2);
  CHECK(finder.Observe({1, 2, 3, 4}).empty());
  CHECK(finder.Observe({1}).empty());
  CHECK(finder.Observe({2, 3}).empty());
  CHECK(finder.Observe({4}) == Batches{{1}, {2, 3}, {4}});
  // Also when it is the period before the last that was cut.
  finder.Reset();
  finder.Observe({1, 2});
  finder.Observe({3});
  CHECK(finder.Observe({1, 2, 3}) == Batches{{1, 2}, {3}});
}

TEST_CASE("the order may differ from period to period, the last one counts") {
  ScheduleFinder finder;
  finder.Observe({1, 2, 3});
  finder.Observe({3, 1, 2});
  CHECK(finder.Observe({2, 1, 3}) == Batches{{2, 1, 3}});
}

TEST_CASE("it does not matter where in a period watching begins") {
  ScheduleFinder finder;
  finder.Observe({3});  // the end of a step
  for (int step = 0; step < 2; ++step) {
    CHECK(finder.Observe({1, 2}).empty());
    CHECK(finder.Observe({3}).empty());
  }
  CHECK(finder.Observe({1, 2}) == Batches{{3}, {1, 2}});
}

TEST_CASE("steps that are agreed whole are found, though watching begins in the middle of one") {
  for (const Ids& rest : {Ids{5}, Ids{3, 4, 5}, Ids{2, 3, 4, 5}}) {
    ScheduleFinder finder;
    finder.Observe(rest);
    Batches found;
    int steps = 0;
    for (; steps < 10 && found.empty(); ++steps) found = finder.Observe({1, 2, 3, 4, 5});
    CHECK(found == Batches{{1, 2, 3, 4, 5}});
    CHECK(steps <= 5);
  }
}

TEST_CASE("a member more, or less, or another one begins anew") {
  const Ids step{1, 2, 3};
  for (const Ids& odd : {Ids{1, 2, 3, 4}, Ids{1, 2}, Ids{1, 2, 5}, Ids{4}}) {
    ScheduleFinder finder;
    finder.Observe(step);
    finder.Observe(step);
    CHECK(finder.Observe(odd).empty());
    CHECK(finder.Observe(step).empty());
    CHECK(finder.Observe(step).empty());
    // At most one more: the odd one may have cut a period into two.
    const bool now = !finder.Observe(step).empty();
    CHECK((now || !finder.Observe(step).empty()));
  }
}

TEST_CASE("as many equal periods as wanted") {
  for (int periods = 2; periods < 8; ++periods) {
    ScheduleFinder finder;
    finder.set_periods(periods);
    for (int i = 1; i < periods; ++i) CHECK(finder.Observe({7}).empty());
    CHECK(finder.Observe({7}) == Batches{{7}});
    finder.Reset();
    CHECK(finder.Observe({7}).empty());
  }
}

}  // namespace
}  // namespace horon
