// Negotiation through one leader a node, with thread ranks.
#include <latch>

#include "test/support/catch.h"
#include "test/support/world.h"

namespace horon {
namespace {

using test::Rank;
using test::World;
using test::WorldOptions;

TEST_CASE("only the leaders of the nodes talk to rank 0") {
  WorldOptions options;
  options.local_size = 3;
  options.configure = [](Config& c) { c.lock_schedule = false; };
  World world(7, options);  // nodes {0 1 2} {3 4 5} {6}
  std::vector<int64_t> requests(7), bits(7);
  std::vector<Status> status(7);
  world.Run([&](Rank& me) {
    const auto r = static_cast<size_t>(me.rank());
    std::vector<float> value(1);
    for (int step = 0; step < 10; ++step) {
      value[0] = static_cast<float>(me.rank());
      status[r] = me.Reduce("x", "sum", value);
      if (value[0] != 21) status[r] = Status::Internal("a wrong sum");
      if (!status[r].ok()) return;
    }
    requests[r] = me.runtime().counters()["negotiation.inproc.requests"].value();
    bits[r] = me.runtime().counters()["negotiation.inproc.bits"].value();
  });
  for (size_t r = 0; r < 7; ++r) {
    INFO("rank " << r << ": " << status[r].message());
    CHECK(status[r].ok());
    CHECK(requests[r] == 1);
    CHECK(bits[r] == 9);
  }
}

TEST_CASE("when a leader leaves, its node hears that it cannot go on, and the others do") {
  WorldOptions options;
  options.local_size = 2;
  World world(5, options);  // nodes {0 1} {2 3} {4}
  std::vector<Status> status(5);
  std::latch first(5), left(1);
  world.Run([&](Rank& me) {
    const auto r = static_cast<size_t>(me.rank());
    std::vector<float> value(1, 1);
    status[r] = me.Reduce("first", "sum", value);
    first.arrive_and_wait();
    if (me.rank() == 2) {
      me.runtime().Shutdown();
      left.count_down();
      return;
    }
    left.wait();
    status[r] = me.Reduce("second", "sum", value);
  });
  for (size_t r = 0; r < 5; ++r) {
    INFO("rank " << r << ": " << status[r].message());
    if (r == 2) {
      CHECK(status[r].ok());
      continue;
    }
    CHECK(status[r].code() == Code::kAborted);
    CHECK(status[r].message().find(r == 3 ? "first rank of this node" : "rank 2, which has left") !=
          std::string::npos);
  }
}

TEST_CASE("a rank that leaves behind its leader keeps nobody waiting") {
  WorldOptions options;
  options.local_size = 2;
  for (int leaver : {1, 3}) {
    World world(4, options);
    std::vector<Status> status(4);
    world.Run([&](Rank& me) {
      const auto r = static_cast<size_t>(me.rank());
      std::vector<float> value(1, 1);
      status[r] = me.Reduce("first", "sum", value);
      if (me.rank() == leaver)
        me.runtime().Shutdown();
      else
        status[r] = me.Reduce("second", "sum", value);
    });
    for (size_t r = 0; r < 4; ++r)
      CHECK(status[r].code() == (static_cast<int>(r) == leaver ? Code::kOk : Code::kAborted));
  }
}

}  // namespace
}  // namespace horon
