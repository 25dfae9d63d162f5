// Pace: naps that follow how fast bytes travel.
#include "runtime/core/pace.h"

#include "test/support/catch.h"

namespace horon {
namespace {

using namespace std::chrono_literals;

// Something travels at so many bytes a second, looked at each time a part of it may have passed.
class Link {
 public:
  explicit Link(int local_size = 1) : pace_(local_size) { pace_.See(number_, sent_, now_); }

  void Go(double bytes_per_second, std::chrono::nanoseconds time, std::chrono::nanoseconds step) {
    for (const auto end = now_ + time; now_ < end;) {
      now_ += step;
      sent_ += static_cast<int64_t>(bytes_per_second * std::chrono::duration<double>(step).count());
      pace_.See(number_, sent_, now_);
    }
  }
  void BeginAfter(std::chrono::nanoseconds pause) { pace_.See(++number_, sent_, now_ += pause); }
  std::chrono::nanoseconds nap() const { return pace_.nap(); }

 private:
  Pace pace_;
  uint64_t number_ = 1;
  int64_t sent_ = 0;
  Pace::Clock::time_point now_{1h};
};

TEST_CASE("a nap is what a part of the bytes in flight takes, and not too long") {
  Link link;
  CHECK(link.nap() == 0ns);
  link.Go(1.25e9, 100us, 10us);
  CHECK(link.nap() == 0ns);  // too little to tell
  link.Go(1.25e9, 10ms, 10us);
  CHECK(link.nap() > 205us);
  CHECK(link.nap() < 215us);
  link.Go(12.5e9, 10ms, 10us);
  CHECK(link.nap() < 22us);
  link.Go(125e6, 50ms, 10us);
  CHECK(link.nap() == Pace::kMost);
}

TEST_CASE("of a node's ranks each sends its share of the part") {
  Link link(4);
  link.Go(1.25e9 / 4, 20ms, 10us);
  CHECK(link.nap() > 205us);
  CHECK(link.nap() < 215us);
  link.Go(125e6 / 4, 100ms, 10us);
  CHECK(link.nap() == Pace::kMostOfSeveral);
}

TEST_CASE("what does not travel any more is not napped for, until it travels again") {
  Link link;
  link.Go(125e6, 50ms, 1ms);
  REQUIRE(link.nap() == Pace::kMost);
  link.Go(0, 20ms, 1ms);  // a slice is reduced, or a peer looks late
  CHECK(link.nap() == Pace::kMost);
  link.Go(0, 40ms, 1ms);
  CHECK(link.nap() == 0ns);
  link.Go(0, 10s, 1ms);
  link.Go(1.25e9, 2ms, 10us);
  CHECK(link.nap() > 205us);
  CHECK(link.nap() < 215us);  // with nothing of the 10 s
}

TEST_CASE("waiting in the middle of what is measured is taken for a slow link, not for long") {
  Link link;
  link.Go(125e6, 4ms, 1ms);
  link.Go(0, 10s, 1ms);
  link.Go(125e6, 5ms, 1ms);
  REQUIRE(link.nap() == Pace::kMost);
  link.Go(0, 300ms, 1ms);
  CHECK(link.nap() == Pace::kMost);
  link.Go(0, 200ms, 1ms);
  CHECK(link.nap() == 0ns);
}

TEST_CASE("a bucket that sends too little to tell is napped for once") {
  Link link;
  link.Go(125e6, 50ms, 1ms);
  link.BeginAfter(0ns);
  CHECK(link.nap() == Pace::kMost);
  link.Go(12.5e6, 15ms, 1ms);
  CHECK(link.nap() == Pace::kMost);
  link.BeginAfter(0ns);
  CHECK(link.nap() == 0ns);
  link.Go(125e6, 20ms, 1ms);
  CHECK(link.nap() == Pace::kMost);
}

TEST_CASE("a pause between two buckets is none of the link's") {
  Link link;
  link.Go(1.25e9, 20ms, 1ms);
  const auto before = link.nap();
  link.BeginAfter(1s);
  CHECK(link.nap() == before);
  link.Go(1.25e9, 20ms, 1ms);
  CHECK(link.nap() > before - 10us);
  CHECK(link.nap() < before + 10us);
}

}  // namespace
}  // namespace horon
