#include "runtime/core/tuning_search.h"

#include <functional>
#include <random>
#include <string>

#include "test/support/catch.h"

namespace horon {
namespace {

constexpr int64_t kMiB = 1 << 20;
const TuningLimits kOneNode{64 * kMiB, 256 << 10, 0, false, 1000};
const TuningLimits kNodes{64 * kMiB, 0, kMiB, true, 1000};

using Cost = std::function<double(const Tuning&)>;

// Runs it to its end; what it keeps.
Tuning Search(const Tuning& start, const TuningLimits& limits, const Cost& cost, int* samples) {
  TuningSearch search(start, limits);
  for (*samples = 0; !search.done(); ++*samples) {
    REQUIRE(*samples < limits.most_samples);
    search.Measured(cost(search.current()));
  }
  return search.current();
}

Tuning Search(const Tuning& start, const TuningLimits& limits, const Cost& cost) {
  int samples = 0;
  return Search(start, limits, cost, &samples);
}

TEST_CASE("the search finds what is faster, one property after the other") {
  const Cost one_node = [](const Tuning& t) {
    return 1.0 - (t.fusion_bytes == 4 * kMiB ? 0.1 : 0) - (t.chunk_bytes == 64 << 10 ? 0.1 : 0);
  };
  const Tuning found = Search({}, kOneNode, one_node);
  CHECK(found.fusion_bytes == 4 * kMiB);
  CHECK(found.chunk_bytes == 64 << 10);
  const Cost nodes = [](const Tuning& t) {
    return 1.0 - (t.slice_bytes == 2 * kMiB ? 0.1 : 0) - (t.hierarchical ? 0 : 0.1);
  };
  const Tuning between = Search({}, kNodes, nodes);
  CHECK(between.slice_bytes == 2 * kMiB);
  CHECK(!between.hierarchical);
  CHECK(between.fusion_bytes == Tuning().fusion_bytes);
}

TEST_CASE("a start that fuses too little is left for one that fuses a whole step") {
  const Cost cost = [](const Tuning& t) { return t.fusion_bytes >= 64 * kMiB ? 0.5 : 1.0; };
  CHECK(Search({.fusion_bytes = 0}, kOneNode, cost).fusion_bytes == 64 * kMiB);
}

TEST_CASE("what is not faster by two in a hundred is not worth a change") {
  const Cost cost = [](const Tuning& t) { return t == Tuning() ? 1.0 : 0.985; };
  CHECK(Search({}, kOneNode, cost) == Tuning());
}

TEST_CASE("where there is nothing to choose it ends at once") {
  CHECK(TuningSearch({}, TuningLimits{}).done());
  CHECK(TuningSearch({}, TuningLimits{}).current() == Tuning());
}

TEST_CASE("a machine that grows slower does not make the start look slow") {
  double now = 1.0;
  const Cost cost = [&](const Tuning&) { return now *= 1.03; };
  CHECK(Search({}, kOneNode, cost) == Tuning());
}

TEST_CASE("noise alone rarely moves it, and never to what is slower") {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 0.05);
  int moved = 0;
  for (int turn = 0; turn < 300; ++turn) {
    const bool alike = turn % 2 == 0;
    const Cost cost = [&](const Tuning& t) {
      return (t == Tuning() || alike ? 1.0 : 1.1) * (1.0 + noise(random));
    };
    const bool stays = Search({}, kOneNode, cost) == Tuning();
    moved += stays ? 0 : 1;
    CHECK((stays || alike));
  }
  CHECK(moved <= 15);
}

TEST_CASE("a winner that only seemed to win is given up") {
  int samples = 0;
  // Smaller buckets are faster at first, and never again.
  const Cost cost = [&](const Tuning& t) {
    return t.fusion_bytes == Tuning().fusion_bytes ? 1.0 : samples < 12 ? 0.8 : 1.3;
  };
  CHECK(Search({}, kOneNode, cost, &samples) == Tuning());
  CHECK(samples > 12);
}

TEST_CASE("samples come in the order best, new, new, best, and say what they were") {
  TuningSearch search({}, kOneNode);
  for (size_t setting : {0u, 1u, 1u, 0u, 0u, 2u, 2u}) {
    const TuningSearch::Sample sample = search.Measured(setting == 0 ? 1.0 : 2.0);
    CHECK(sample.setting == setting);
    CHECK(sample.against == 0);
    CHECK(sample.verdict == (sample.number == 4 ? "slower" : ""));
  }
  CHECK(search.settings().size() == 3);
}

TEST_CASE("it keeps to the number of samples it was given") {
  for (int64_t most : {36, 40, 61}) {
    TuningLimits limits = kOneNode;
    limits.most_samples = most;
    double time = 1.0;  // every change seems to pay
    int samples = 0;
    Search(
        {}, limits, [&](const Tuning& t) { return t == Tuning() ? 1.0 : time *= 0.9; }, &samples);
    CHECK(samples <= most);
    CHECK(samples >= 4);
  }
}

}  // namespace
}  // namespace horon
