// Averages of pairs and steps on thread ranks, all at once and in any order, over a network that
// loses, doubles, delays and reorders: everything ends, and no part of a sum is lost. What AD-PSGD
// does; the thread sanitizer sees it here. Every order of few messages: schedules_test.cc.
#include <cmath>
#include <deque>
#include <random>

#include "test/support/road.h"
#include "test/support/unreliable_transport.h"
#include "test/support/window_rank.h"

namespace horon {
namespace {

using test::Between;
using test::Rank;
using test::RequireNone;
using test::Total;
using test::Verdicts;
using test::WindowRank;
using test::World;
using test::WorldOptions;

std::vector<int> AllBut(const Rank& me) {
  std::vector<int> others;
  for (int rank = 0; rank < me.size(); ++rank) {
    if (rank != me.rank()) others.push_back(rank);
  }
  return others;
}

// A rank's traffic: averages with anybody, at most two at a time, beside steps that add to all
// values.
class Traffic {
 public:
  Traffic(Rank& me, size_t count)
      : me_(me),
        others_(AllBut(me)),
        window_(me, std::vector<float>(count, static_cast<float>(me.rank())), others_, others_,
                true, "w", false),
        change_(count),
        shown_(count),
        random_(static_cast<unsigned>(me.rank())) {}

  void Act() {
    const int peer = others_[random_() % others_.size()];
    auto work =
        StartOrder(me_.runtime(),
                   window_.Make(OrderKind::kPair, {{peer, random_() % 2 == 0 ? 0.5 : 0.25}}), true);
    failed = failed || !work.ok();
    if (!work.ok()) return;
    ++begun;
    under_way_.push_back(work.value());
    if (random_() % 2 == 0) Step();
    if (under_way_.size() > 2 || random_() % 3 == 0) WaitForOne();
  }
  void End() {
    while (!under_way_.empty()) WaitForOne();
  }
  float value(size_t i) const { return window_.values[i]; }
  Status Free() { return window_.Free(); }

  bool failed = false;
  int begun = 0, missed = 0;
  double added = 0;  // to each value, by this rank's steps

 private:
  void Step() {
    const double by = static_cast<double>(random_() % 5) - 2;
    std::fill(change_.begin(), change_.end(), static_cast<float>(by));
    Order order = window_.Make(OrderKind::kStep, {});
    order.input = reinterpret_cast<const std::byte*>(change_.data());
    order.output = reinterpret_cast<std::byte*>(shown_.data());
    window_.Do(std::move(order));
    failed = failed || !window_.status.ok();
    added += by;
  }
  void WaitForOne() {
    Work& work = *under_way_.front();
    if (me_.Wait(work).ok()) {
      missed += work.outputs()[0].received_splits.empty() ? 0 : 1;
    } else {
      failed = true;
    }
    under_way_.pop_front();
  }

  Rank me_;
  std::vector<int> others_;
  WindowRank window_;
  std::vector<float> change_, shown_;
  std::mt19937 random_;
  std::deque<std::shared_ptr<Work>> under_way_;
};

void Stress(int size, const WorldOptions& options, int turns, size_t count) {
  Verdicts verdicts;
  World(size, options).Run([&](Rank& me) {
    Traffic traffic(me, count);
    for (int turn = 0; turn < turns; ++turn) traffic.Act();
    traffic.End();
    EXPECT(!traffic.failed && traffic.missed == 0, "an average was given up");
    const double begun = Total(me, "begun", traffic.begun);
    const double made =
        Total(me, "made", static_cast<double>(me.runtime().counters()["pair.averages"].value()));
    EXPECT(begun == size * turns && made == 2 * begun, "an average was made once, or thrice");
    const double want = size * (size - 1) / 2.0 + Total(me, "added", traffic.added);
    for (const size_t i : {size_t{0}, count / 2, count - 1})
      EXPECT(std::abs(Total(me, "sum " + std::to_string(i), traffic.value(i)) - want) < 1e-3,
             "the sum was not kept");
    EXPECT(traffic.Free().ok(), "the window cannot be freed");
  });
  RequireNone(verdicts);
}

TEST_CASE("averages of pairs and steps in random order end and keep the sum, by lost messages") {
  const int size = GENERATE(2, 3, 6, 16);
  INFO(size);
  WorldOptions options = Between(std::chrono::milliseconds{8'000}, 6, 12, 8);
  options.limit = std::chrono::seconds{300};
  Stress(size, options, size > 6 ? 8 : 20, 100);
}

TEST_CASE("the same inside nodes and between them, with several pieces a message") {
  WorldOptions options = Between(std::chrono::milliseconds{8'000}, 0, 6, 6);
  options.local_size = GENERATE(0, 2);
  options.limit = std::chrono::seconds{300};
  Stress(4, options, 20, 70'001);
}

}  // namespace
}  // namespace horon
