// The asker alone, on times of its own: who waits, and who only takes long.
#include "runtime/core/stall_asker.h"

#include <algorithm>

#include "test/support/catch.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using Running = StallAsker::Running;

const Request kOldest = [] {
  Request request;
  request.name = "large";
  return request;
}();

// Looks every 100 ms for nine seconds, as `running` says what is in flight; when the advice was
// first such as `is_it` means, -1 if never.
template <typename At, typename IsIt>
int AfterMs(StallAsker& asker, At running, IsIt is_it) {
  for (int ms = 0; ms <= 9000; ms += 100) {
    const StallAsker::Time now{milliseconds{1'000'000 + ms}};
    const Running is = running(ms);
    if (asker.Due(now, true, {}, is) && is_it(asker.Look(now, {}, is, &kOldest))) return ms;
  }
  return -1;
}

template <typename At>
int AskedAfterMs(StallAsker& asker, At running) {
  return AfterMs(asker, running, [](const StallAsker::Advice& advice) { return advice.ask; });
}

TEST_CASE("a bucket that does not go on is asked about, one that goes on is not", "[stall]") {
  StallAsker still(Config{}, 1), slow(Config{}, 1), stops(Config{}, 1);
  CHECK(AskedAfterMs(still, [](int) { return Running{1, 7}; }) == 500);
  // A bucket of nine seconds on a slow link, of which a piece arrives now and then.
  CHECK(AskedAfterMs(slow, [](int ms) {
          return Running{1, static_cast<uint64_t>(ms / 300)};
        }) == -1);
  // It stands still from the first second on: after the look that has seen it move, and one more.
  CHECK(AskedAfterMs(stops, [](int ms) {
          return Running{1, static_cast<uint64_t>(std::min(ms, 900) / 300)};
        }) == 1500);
}

TEST_CASE("the next bucket has its own time, whatever the last one did", "[stall]") {
  StallAsker asker(Config{}, 1);
  // A bucket each 400 ms, of many that were there from the beginning, which all stand still until
  // they are over.
  CHECK(AskedAfterMs(asker, [](int ms) {
          return Running{static_cast<uint64_t>(1 + ms / 400), 7};
        }) == -1);
}

TEST_CASE("what makes no progress is given up, what takes long is not", "[stall]") {
  Config config;
  config.stall_shutdown = milliseconds{2000};
  config.stall_silence = milliseconds{0};
  const auto given_up_after_ms = [&](auto moves) {
    StallAsker asker(config, 1);
    return AfterMs(asker, [&](int ms) { return Running{1, moves(ms)}; },
                   [](const StallAsker::Advice& advice) { return !advice.status.ok(); });
  };
  const int still = given_up_after_ms([](int) { return uint64_t{0}; });
  CHECK((still >= 2000 && still < 4000));
  CHECK(given_up_after_ms([](int ms) { return static_cast<uint64_t>(ms / 300); }) == -1);
}

}  // namespace
}  // namespace horon
