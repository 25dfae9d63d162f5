// PollWait: what wakes nobody is looked at often while it may come, and seldom once it has not.
#include "runtime/core/poll_wait.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using namespace std::chrono_literals;
using Duration = PollWait::Duration;

constexpr PollWait::Kind kLong[] = {PollWait::kIdle, PollWait::kAgreeing, PollWait::kBytes};

// Sleeps in vain on a clock of its own. A look takes no time, and a sleep 50 us at least.
struct Sleeper {
  PollWait wait;
  PollWait::Clock::time_point now{};
  int looks = 0;

  void SleepOnce(const PollWait::Kind& kind, bool open = false) {
    wait.BackOff(kind, open, now);
    now += std::max(wait.wait(), Duration{50});
    ++looks;
  }
  void Sleep(const PollWait::Kind& kind, Duration total, bool open = false) {
    for (const auto until = now + total; now < until;) SleepOnce(kind, open);
  }
};

TEST_CASE("what may come any moment is looked for every 200 us at least") {
  for (const auto& kind : {PollWait::kAgreeing, PollWait::kBytes}) {
    Sleeper sleeper;
    CHECK(sleeper.wait.wait() == 0us);
    while (sleeper.now < PollWait::Clock::time_point{3ms}) {
      sleeper.SleepOnce(kind);
      REQUIRE(sleeper.wait.wait() <= PollWait::kSoon);
    }
    CHECK(sleeper.wait.wait() == PollWait::kSoon);
  }
}

TEST_CASE("it is looked for awake for two milliseconds") {
  Sleeper sleeper;
  for (; sleeper.wait.awake(); sleeper.SleepOnce(PollWait::kBytes)) {
  }
  CHECK(sleeper.now > PollWait::Clock::time_point{PollWait::kAwake});
  CHECK(sleeper.now <= PollWait::Clock::time_point{PollWait::kAwake + 2 * PollWait::kSoon});
}

TEST_CASE("a look is late by a part of how long nothing has come") {
  for (const auto& kind : kLong) {
    Sleeper sleeper;
    while (sleeper.now < PollWait::Clock::time_point{2s}) {
      const auto slept = std::chrono::duration_cast<Duration>(sleeper.now.time_since_epoch());
      sleeper.SleepOnce(kind);
      REQUIRE(sleeper.wait.wait() <= std::max(PollWait::kSoon, slept / kind.part));
      REQUIRE(sleeper.wait.wait() <= kind.most);
    }
    CHECK(sleeper.wait.wait() == kind.most);
    CHECK_FALSE(sleeper.wait.awake());
  }
}

TEST_CASE("rings in vain make no look later") {
  PollWait wait;
  for (int i = 0; i < 1000; ++i) {
    wait.BackOff(PollWait::kAgreeing, false, PollWait::Clock::time_point{i * 1us});
    REQUIRE(wait.wait() <= PollWait::kSoon);
  }
  CHECK(wait.awake());
}

TEST_CASE("a second in vain takes few looks") {
  for (const auto& kind : kLong) {
    Sleeper sleeper;
    sleeper.Sleep(kind, 1s);
    CHECK(sleeper.looks < 300);
    sleeper.looks = 0;
    sleeper.Sleep(kind, 1s);
    CHECK(sleeper.looks <= 1s / kind.most + 1);
  }
}

TEST_CASE("what has come begins a new wait") {
  Sleeper sleeper;
  sleeper.Sleep(PollWait::kBytes, 1s);
  sleeper.wait.Moved();
  CHECK(sleeper.wait.wait() == 0us);
  CHECK(sleeper.wait.awake());
  sleeper.SleepOnce(PollWait::kBytes);
  CHECK(sleeper.wait.wait() == 0us);
}

TEST_CASE("a GPU, and windows, are looked at often also after long") {
  Sleeper gpu;
  gpu.Sleep(PollWait::kGpu, 1s);
  CHECK(gpu.wait.wait() == PollWait::kSoon);
  for (const auto& kind : kLong) {
    Sleeper open;
    open.Sleep(kind, 1s, true);
    CHECK(open.wait.wait() == 2ms);
  }
}

}  // namespace
}  // namespace horon
