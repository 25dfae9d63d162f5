// PollWait: what wakes nobody is looked at often while it may come, and seldom once it has not.
#include "runtime/core/poll_wait.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using namespace std::chrono_literals;
using Duration = PollWait::Duration;

// Sleeps for so long in vain; returns how often it has looked.
int Sleep(PollWait& wait, const PollWait::Kind& kind, Duration total) {
  int looks = 0;
  for (Duration slept{0}; slept < total; ++looks) {
    wait.BackOff(kind);
    slept += wait.wait();
  }
  return looks;
}

constexpr PollWait::Kind kLong[] = {PollWait::kIdle, PollWait::kAgreeing, PollWait::kBytes};

TEST_CASE("what may come any moment is looked for every 200 us at least") {
  for (const auto& kind : {PollWait::kAgreeing, PollWait::kBytes}) {
    PollWait wait;
    CHECK(wait.wait() == 0us);
    for (Duration slept{0}; slept < 3ms; slept += wait.wait()) {
      wait.BackOff(kind);
      REQUIRE(wait.wait() <= PollWait::kSoon);
    }
    CHECK(wait.wait() == PollWait::kSoon);
  }
}

TEST_CASE("it is looked for awake for a millisecond") {
  PollWait wait;
  Duration slept{0};
  while (!wait.long_since()) {
    wait.BackOff(PollWait::kBytes);
    slept += wait.wait();
  }
  CHECK(slept > 1ms);
  CHECK(slept <= 1ms + 2 * PollWait::kSoon);
}

TEST_CASE("a look is late by a part of how long nothing has come") {
  for (const auto& kind : kLong) {
    PollWait wait;
    for (Duration slept{0}; slept < 2s; slept += wait.wait()) {
      wait.BackOff(kind);
      REQUIRE(wait.wait() <= std::max(PollWait::kSoon, (slept + PollWait::kSoon) / kind.part));
      REQUIRE(wait.wait() <= kind.most);
    }
    CHECK(wait.wait() == kind.most);
    CHECK(wait.long_since());
  }
}

TEST_CASE("a second in vain takes few looks") {
  for (const auto& kind : kLong) {
    PollWait wait;
    CHECK(Sleep(wait, kind, 1s) < 300);
    CHECK(Sleep(wait, kind, 1s) <= 1s / kind.most + 1);
  }
}

TEST_CASE("what has come begins a new wait") {
  PollWait wait;
  Sleep(wait, PollWait::kBytes, 1s);
  wait.Moved();
  CHECK(wait.wait() == 0us);
  CHECK_FALSE(wait.long_since());
  wait.BackOff(PollWait::kBytes);
  CHECK(wait.wait() == PollWait::kFirst);
}

TEST_CASE("a GPU, and windows, are looked at often also after long") {
  PollWait gpu, open;
  Sleep(gpu, PollWait::kGpu, 1s);
  CHECK(gpu.wait() == PollWait::kSoon);
  CHECK_FALSE(gpu.long_since());
  Sleep(open, PollWait::kOpen, 1s);
  CHECK(open.wait() == 2ms);
}

}  // namespace
}  // namespace horon
