#include "runtime/core/schedule_recall.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using Batches = ScheduleFinder::Batches;
const Batches kLeft{{1, 2}, {3}, {4, 5}};

TEST_CASE("a schedule that was left is recalled after one whole period of it") {
  ScheduleRecall recall;
  CHECK(recall.Observe({1}).empty());
  recall.Remember(kLeft);
  CHECK(recall.Observe({9}).empty());  // what it was left for
  CHECK(recall.Observe({1, 2}).empty());
  CHECK(recall.Observe({3, 4}).empty());
  CHECK(recall.Observe({5}) == kLeft);
}

TEST_CASE("it begins where the period began") {
  ScheduleRecall recall;
  recall.Remember(kLeft);
  CHECK(recall.Observe({3}).empty());
  CHECK(recall.Observe({4, 5}).empty());
  CHECK(recall.Observe({1, 2}) == Batches{{3}, {4, 5}, {1, 2}});
}

TEST_CASE("a stranger or a tensor that comes twice begins anew") {
  ScheduleRecall recall;
  recall.Remember(kLeft);
  CHECK(recall.Observe({1, 2, 3, 9, 4, 5}).empty());
  CHECK(recall.Observe({1, 2}).empty());  // 4, 5, 1, 2
  CHECK(recall.Observe({1}).empty());
  CHECK(recall.Observe({2, 3, 4}).empty());
  recall.Interrupt();
  CHECK(recall.Observe({5}).empty());
  CHECK(recall.Observe({1, 2, 3, 4}) == Batches{{4, 5}, {1, 2}, {3}});
}

TEST_CASE("what was forgotten is not recalled") {
  ScheduleRecall recall;
  recall.Remember(kLeft);
  CHECK(recall.Observe({1, 2, 3}).empty());
  recall.Forget();
  CHECK(recall.Observe({4, 5}).empty());
  CHECK(recall.Observe({1, 2, 3, 4, 5}).empty());
}

}  // namespace
}  // namespace horon
