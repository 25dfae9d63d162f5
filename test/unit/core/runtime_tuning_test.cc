// A runtime that tunes itself: all ranks cut their buckets alike at every moment (a lane refuses a
// bucket that is not the others'), also in the middle of a locked schedule, and sums stay right.
#include <atomic>

#include "test/support/folder.h"
#include "test/support/steady.h"

namespace horon {
namespace {

using test::Count;
using test::Folder;
using test::Places;
using test::Rank;
using test::RequireNone;
using test::Step;
using test::Text;
using test::Verdicts;
using test::World;
using test::WorldOptions;

WorldOptions With(WorldOptions options, std::function<void(Config&)> configure) {
  options.configure = std::move(configure);
  return options;
}

int Lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// Steps until rank 0 has chosen; 0 when it never does.
int StepsUntilChosen(Rank& me, Step& step, const std::string& log, std::atomic<bool>& chosen,
                     std::barrier<>& together, Verdicts& verdicts) {
  for (int i = 1; i < 3000; ++i) {
    step.Submit(me, static_cast<float>(i));
    EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum in step " + std::to_string(i));
    if (i % 20 != 0) continue;
    if (me.rank() == 0) chosen = Text(log).find(",chosen\n") != std::string::npos;
    together.arrive_and_wait();
    const bool done = chosen;
    together.arrive_and_wait();
    if (done) return i;
  }
  return 0;
}

TEST_CASE("a job is tuned while it runs, and all ranks follow") {
  for (WorldOptions place : Places()) {
    const Folder folder;
    const std::string log = folder / "log.csv", file = folder / "found";
    place.configure = [&](Config& config) {
      config.autotune = true;
      config.autotune_log = log;
      config.autotune_file = file;
      config.autotune_warmup = 1;
      config.autotune_steps = 3;
      config.deterministic = false;
    };
    Verdicts verdicts;
    std::atomic<bool> chosen{false};
    std::barrier<> together(4);
    std::vector<int64_t> samples(4);
    World(4, place).Run([&](Rank& me) {
      EXPECT(me.runtime().StartConfiguredTuning().ok(), "tuning does not start");
      Step step(8, 12'000);
      EXPECT(StepsUntilChosen(me, step, log, chosen, together, verdicts) > 0, "nothing is chosen");
      EXPECT(Count(me, "schedule.locks") > 3, "every change leaves the schedule, and it is found");
      samples[static_cast<size_t>(me.rank())] = Count(me, "autotune.samples");
    });
    RequireNone(verdicts);
    CHECK(Lines(Text(log)) == samples[0] + 2);
    CHECK(samples[0] >= 8);
    CHECK(samples[1] == 0);
    CHECK(Text(file).starts_with("fusion_bytes="));
  }
}

TEST_CASE("what was found before is taken over by all ranks, and nothing is measured") {
  for (const WorldOptions& place : Places()) {
    const Folder folder;
    const std::string file = folder / "found";
    std::ofstream(file) << "fusion_bytes=0\nchunk_bytes=4096\nslice_bytes=8192\nhierarchical=0\n";
    Verdicts verdicts;
    const auto configure = [&](Config& config) {
      config.autotune = true;
      config.autotune_file = file;
    };
    World(4, With(place, configure)).Run([&](Rank& me) {
      EXPECT(me.runtime().StartConfiguredTuning().ok(), "tuning does not start");
      std::vector<float> first(1, 1);  // the next decision may still be of before
      EXPECT(me.Reduce("first", "sum", first).ok(), "first");
      // A locked schedule may take buckets back and begin them again: both counters count that.
      const auto fused = [&] { return Count(me, "executor.tensors") - Count(me, "executor.buckets"); };
      const int64_t before = fused();
      Step step(10, 7'001);
      for (int i = 0; i < 20; ++i) {
        step.Submit(me, static_cast<float>(i));
        EXPECT(step.Wait(me, static_cast<float>(i)), "wrong sum");
      }
      EXPECT(Count(me, "executor.tensors") >= 200, "all have run");
      EXPECT(fused() == before, "each tensor is alone");
      EXPECT(Count(me, "autotune.samples") == 0, "nothing is measured");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("a file that cannot be used is an error that names it") {
  const Folder folder;
  std::ofstream(folder / "garbled") << "fusion_bytes=many\n";
  struct Case {
    bool autotune;
    std::string file, log;
    const char* words;
  };
  const Case cases[] = {{false, folder / "garbled", "", "line 1, 'fusion_bytes=many'"},
                        {true, folder / "garbled", "", "line 1"},
                        {false, folder / "none", "", "HORON_AUTOTUNE=1"},
                        {true, "", folder / "no/log", "HORON_AUTOTUNE_LOG"}};
  for (const Case& wrong : cases) {
    Verdicts verdicts;
    const auto configure = [&](Config& config) {
      config.autotune = wrong.autotune;
      config.autotune_file = wrong.file;
      config.autotune_log = wrong.log;
    };
    World(2, With({}, configure)).Run([&](Rank& me) {
      const Status status = me.runtime().StartConfiguredTuning();
      EXPECT(status.ok() == (me.rank() == 1), status.message());
      if (me.rank() == 1) return;
      EXPECT(status.code() == Code::kInvalidArgument, status.message());
      EXPECT(status.message().find(wrong.words) != std::string::npos, status.message());
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("steps that reduce a metric too are left out, not mixed in") {
  const Folder folder;
  const std::string log = folder / "log.csv";
  Verdicts verdicts;
  std::atomic<bool> chosen{false};
  std::barrier<> together(2);
  const auto configure = [&](Config& config) {
    config.autotune = true;
    config.autotune_log = log;
    config.autotune_steps = 3;
  };
  World(2, With({}, configure)).Run([&](Rank& me) {
    EXPECT(me.runtime().StartConfiguredTuning().ok(), "tuning does not start");
    Step step(8, 5'000);
    for (int i = 0; i < 1500 && !chosen; ++i) {
      step.Submit(me, 1);
      EXPECT(step.Wait(me, 1), "wrong sum");
      std::vector<float> metric(1000, 1);
      if (i % 5 == 0) EXPECT(me.Reduce("metric", "average", metric).ok(), "metric");
      if (i % 25 != 0) continue;
      together.arrive_and_wait();
      if (me.rank() == 0) chosen = Text(log).find(",chosen\n") != std::string::npos;
      together.arrive_and_wait();
    }
    EXPECT(chosen, "nothing is chosen");
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
