// A timeline on the whole road with thread ranks: what it holds of every tensor, on every rank.
#include <fstream>
#include <map>
#include <sstream>

#include "test/support/folder.h"
#include "test/support/road.h"

namespace horon {
namespace {

using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

class Recorded {
 public:
  TimelineOrder Order() const {
    TimelineOrder order;
    order.path = folder_ / "t.json";
    return order;
  }
  // Lines that have all of the words.
  int Count(const std::vector<std::string>& words) const {
    std::ifstream in(folder_ / "t.json");
    int count = 0;
    for (std::string line; std::getline(in, line);) {
      const auto has = [&](const std::string& w) { return line.find(w) != std::string::npos; };
      count += std::all_of(words.begin(), words.end(), has);
    }
    return count;
  }

 private:
  test::Folder folder_;
};

std::string Of(int rank) { return "\"pid\":" + std::to_string(rank) + ","; }

void Reduce(Rank& me, int steps, Verdicts& verdicts) {
  for (int step = 0; step < steps; ++step) {
    std::vector<float> values(1000, 1);
    EXPECT(me.Reduce("a", "sum", values).ok(), "a failed");
    EXPECT(me.Reduce("b", "max", values).ok(), "b failed");
  }
}

// Negotiated, whatever is locked: every rank has heard by then what rank 0 has ordered.
void Meet(Rank& me, const std::string& name, Verdicts& verdicts) {
  std::vector<float> one(1, 1);
  EXPECT(me.Reduce(name, "sum", one).ok(), name + " failed");
}

WorldOptions Apart() {
  WorldOptions apart;
  apart.local_size = 1;
  return apart;
}

TEST_CASE("every rank's tensors are in one timeline, from the order on and until the end") {
  for (const WorldOptions& place : {WorldOptions{}, Apart()}) {
    const Recorded recorded;
    Verdicts verdicts;
    {
      World world(3, place);
      world.Run([&](Rank& me) {
        Reduce(me, 2, verdicts);
        EXPECT(me.runtime().StartTimeline(recorded.Order()).ok(), "not started");
        Meet(me, "begin", verdicts);
        Reduce(me, 3, verdicts);
        EXPECT(me.runtime().StopTimeline().ok(), "not stopped");
        Meet(me, "end", verdicts);
        Reduce(me, 2, verdicts);
        me.runtime().Shutdown();
      });
    }
    RequireNone(verdicts);
    for (int r = 0; r < 3; ++r) {
      INFO("rank " << r);
      CHECK(recorded.Count({"clock_offset", Of(r)}) == 1);
      CHECK(recorded.Count({"\"ALLREDUCE\"", "\"op\":\"sum\"", Of(r)}) == 4);  // with "begin"
      CHECK(recorded.Count({"\"ALLREDUCE\"", "\"op\":\"max\"", Of(r)}) == 3);
      CHECK(recorded.Count({"\"ALLREDUCE\"", "\"step\":2,", Of(r)}) == 2);
      CHECK(recorded.Count({"\"ALLREDUCE\"", "\"step\":5,", Of(r)}) == 0);
      for (const char* phase : {"\"QUEUE\"", "\"PACK\"", "\"WIRE\"", "\"UNPACK\""}) {
        INFO(phase);
        CHECK(recorded.Count({phase, Of(r)}) >= 6);
      }
    }
    CHECK(recorded.Count({"DROPPED"}) == 0);
  }
}

TEST_CASE("what runs in a locked schedule is recorded as not negotiated, all else as negotiated") {
  for (const WorldOptions& place : {WorldOptions{}, Apart()}) {
    const Recorded recorded;
    Verdicts verdicts;
    std::vector<int64_t> locked(2);
    {
      World world(2, place);
      world.Run([&](Rank& me) {
        Counter& of_schedules = me.runtime().counters()["schedule.tensors"];
        EXPECT(me.runtime().StartTimeline(recorded.Order()).ok(), "not started");
        Meet(me, "begin", verdicts);
        Reduce(me, 100, verdicts);
        locked[static_cast<size_t>(me.rank())] = of_schedules.value();
        me.runtime().Shutdown();
      });
    }
    RequireNone(verdicts);
    for (int r = 0; r < 2; ++r) {
      const auto scheduled = static_cast<int>(locked[static_cast<size_t>(r)]);
      CHECK(scheduled > 0);
      CHECK(recorded.Count({"SCHEDULE_ALLREDUCE", "\"negotiated\":false", Of(r)}) == scheduled);
      CHECK(recorded.Count({"\"ALLREDUCE\"", Of(r)}) == 201);
      const int negotiated = recorded.Count({"NEGOTIATE_ALLREDUCE", "\"negotiated\":true", Of(r)});
      CHECK(std::abs(negotiated - (201 - scheduled)) <=
            1);  // "begin" may have come before its order
    }
  }
}

TEST_CASE("of a window of steps nothing else is recorded, of cycles only when asked") {
  const Recorded recorded;
  Verdicts verdicts;
  TimelineOrder order = recorded.Order();
  order.first_step = 3;
  order.end_step = 5;
  order.mark_cycles = true;
  {
    World world(2);
    world.Run([&](Rank& me) {
      EXPECT(me.runtime().StartTimeline(order).ok(), "not started");
      Reduce(me, 10, verdicts);
      me.runtime().Shutdown();
    });
  }
  RequireNone(verdicts);
  CHECK(recorded.Count({"\"ALLREDUCE\""}) == 8);
  CHECK(recorded.Count({"\"ALLREDUCE\"", "\"step\":4,"}) == 4);
  CHECK(recorded.Count({"CYCLE_START"}) > 0);
}

TEST_CASE("a program's own spans are in the timeline while it is recorded") {
  const Recorded recorded;
  Verdicts verdicts;
  {
    World world(2);
    world.Run([&](Rank& me) {
      const auto note = [&](const char* activity) {
        return me.runtime().NoteInTimeline({"batch", activity, SteadyNow(), SteadyNow()});
      };
      EXPECT(!note("before"), "noted before the beginning");
      Meet(me, "ready", verdicts);
      EXPECT(me.runtime().StartTimeline(recorded.Order()).ok(), "not started");
      Meet(me, "begin", verdicts);
      for (int i = 0; i < 3; ++i) EXPECT(note("during"), "not noted");
      Meet(me, "noted", verdicts);
      EXPECT(me.runtime().StopTimeline().ok(), "not stopped");
      Meet(me, "end", verdicts);
      EXPECT(!note("after"), "noted after the end");
      me.runtime().Shutdown();
    });
  }
  RequireNone(verdicts);
  for (int r = 0; r < 2; ++r) {
    CHECK(recorded.Count({"\"during\"", Of(r)}) == 3);
    CHECK(recorded.Count({"thread_name", "\"batch\"", Of(r)}) == 1);
  }
  CHECK(recorded.Count({"before"}) + recorded.Count({"after"}) == 0);
}

TEST_CASE("a timeline that cannot be made is an error on rank 0, and the job goes on") {
  World world(2);
  Verdicts verdicts;
  world.Run([&](Rank& me) {
    TimelineOrder order;
    order.path = "/nowhere/t.json";
    const Status status = me.runtime().StartTimeline(order);
    EXPECT(status.ok() == (me.rank() != 0), "wrong verdict");
    EXPECT(me.runtime().StopTimeline().ok(), "stopping nothing failed");
    Reduce(me, 1, verdicts);
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
