// Stalls and faulty transports on the whole road, with thread ranks: nothing waits for ever.
#include <barrier>
#include <functional>
#include <latch>
#include <thread>

#include "runtime/base/look.h"
#include "test/support/faulty_transport.h"
#include "test/support/road.h"
#include "test/support/steady.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using test::Fault;
using test::FaultyTransport;
using test::Layouts;
using test::Rank;
using test::World;
using test::WorldOptions;

TEST_CASE("ranks that wait for different tensors get errors that say so, and go on") {
  for (const WorldOptions& layout : Layouts()) {
    World world(3, layout);
    std::vector<Status> first(3), second(3);
    world.Run([&](Rank& me) {
      const auto r = static_cast<size_t>(me.rank());
      std::vector<float> values(100, 1);
      first[r] = me.Reduce(me.rank() == 1 ? "b" : "a", "sum", values);
      second[r] = me.Reduce("c", "sum", values);
    });
    for (size_t r = 0; r < 3; ++r) {
      INFO("rank " << r << ": " << first[r].message());
      CHECK(first[r].code() == Code::kInvalidArgument);
      CHECK(first[r].message().find("waits for") != std::string::npos);
      CHECK(second[r].ok());
    }
  }
}

// Of the thread that is rank 0's: what it does the first time that its wait looks aside.
thread_local std::function<void()> first_look;

int LookOnce() {
  LookWorks();
  if (first_look) std::exchange(first_look, nullptr)();
  return 0;
}

TEST_CASE("a rank whose wait looks aside, and computes there, took no other way") {
  World world(2);
  std::vector<Status> status(4);
  world.Run([&](Rank& me) {
    std::vector<float> a(10, 1), b(10, 1);
    if (me.rank() == 1) {
      status[0] = me.Reduce("b", "sum", b);
      status[1] = me.Reduce("a", "sum", a);
      return;
    }
    const auto work = me.Submit(test::Tensor("a", "sum", {10}), a.data(), a.data());
    first_look = [&] {
      std::this_thread::sleep_for(milliseconds{2500});  // computes, longer than a verdict takes
      status[2] = me.Reduce("b", "sum", b);
    };
    SetLook(&LookOnce);
    me.runtime().Wait(*work.value(), std::chrono::minutes(1), true);
    SetLook(nullptr);
    status[3] = work.value()->status();
  });
  for (const Status& one : status) {
    INFO(one.message());
    CHECK(one.ok());
  }
}

TEST_CASE("ranks that wait for different tensors hear it, however long they wait to look aside") {
  World world(2);
  std::vector<Status> status(2);
  const auto begun = std::chrono::steady_clock::now();
  world.Run([&](Rank& me) {
    const std::string name = "only " + std::to_string(me.rank());
    std::vector<float> values(10, 1);
    const auto work = me.Submit(test::Tensor(name, "sum", {10}), values.data(), values.data());
    SetLook(+[] {
      std::this_thread::sleep_for(milliseconds{100});  // for the interpreter's lock
      return 0;
    });
    me.runtime().Wait(*work.value(), std::chrono::minutes(2), true);
    SetLook(nullptr);
    status[static_cast<size_t>(me.rank())] = work.value()->status();
  });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
  for (const Status& one : status) {
    INFO(one.message());
    CHECK(one.message().find("took different ways") != std::string::npos);
  }
}

TEST_CASE(
    "a tensor that waits for a busy rank fails after the limit; the busy rank hears it late") {
  for (WorldOptions layout : Layouts()) {
    layout.configure = [inner = layout.configure](Config& c) {
      inner(c);
      c.stall_warn = milliseconds{700};
      c.stall_shutdown = milliseconds{1500};
    };
    World world(2, layout);
    std::vector<Status> before(2), status(2), after(2);
    std::latch given_up(1);
    world.Run([&](Rank& me) {
      const auto r = static_cast<size_t>(me.rank());
      std::vector<float> values(10, 1);
      before[r] = me.Reduce("before", "sum", values);
      if (me.rank() == 1) given_up.wait();  // computes until the other has given up
      status[r] = me.Reduce("late", "sum", values);
      if (me.rank() == 0) given_up.count_down();
      after[r] = me.Reduce("after", "sum", values);
    });
    for (size_t r = 0; r < 2; ++r) {
      CHECK(before[r].ok());
      CHECK(status[r].code() == Code::kAborted);
      CHECK(status[r].message().find("rank 1 is busy; it last submitted 'before'") !=
            std::string::npos);
      CHECK(after[r].ok());
    }
  }
}

TEST_CASE("a rank whose messages vanish is given up, and everyone hears which it is") {
  for (const int mute : {0, 1}) {
    WorldOptions options;
    options.lanes = false;
    // The mute one stands for a stopped process, which judges nobody.
    options.configure_rank = [mute](int rank, Config& c) {
      c.stall_silence = milliseconds{rank == mute ? 0 : 1500};
    };
    std::atomic<int> struck{0};
    options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
      Fault fault{rank == mute ? Fault::Kind::kDropAll : Fault::Kind::kNone, 1};
      fault.struck = &struck;
      return std::make_unique<FaultyTransport>(std::move(inner), fault);
    };
    World world(3, options);
    std::vector<Status> status(3);
    world.Run([&](Rank& me) {
      std::vector<float> values(10, 1);
      status[static_cast<size_t>(me.rank())] = me.Reduce("a", "sum", values);
    });
    CHECK(struck > 0);
    for (size_t r = 0; r < 3; ++r) {
      INFO("rank " << r << ": " << status[r].message());
      CHECK(status[r].code() == Code::kUnavailable);
      if (static_cast<int>(r) != mute)
        CHECK(status[r].message().find("rank " + std::to_string(mute) + " has not answered") !=
              std::string::npos);
    }
  }
}

// The others wait for its answer to rank 0's wish to leave the schedule, and for its part of a
// bucket.
TEST_CASE("a rank that falls silent in a locked schedule is named") {
  for (const int mute : {1, 2}) {
    WorldOptions options;
    options.local_size = 1;
    options.lanes = false;
    options.configure_rank = [mute](int rank, Config& c) {
      c.stall_silence = milliseconds{rank == mute ? 5000 : 1500};
    };
    std::atomic<int> struck{0};
    std::atomic<bool> armed{false};
    options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
      Fault fault{rank == mute ? Fault::Kind::kDropAll : Fault::Kind::kNone, 1};
      fault.struck = &struck;
      fault.armed = &armed;
      return std::make_unique<FaultyTransport>(std::move(inner), fault);
    };
    World world(3, options);
    test::Settler settle(3);
    test::Verdicts verdicts;
    std::barrier<> settled(3);
    std::vector<Status> status(3);
    world.Run([&](Rank& me) {
      test::Step step(4);
      settle(me, step, verdicts);
      settled.arrive_and_wait();
      armed = true;
      settled.arrive_and_wait();
      std::vector<float> values(3, 1);
      status[static_cast<size_t>(me.rank())] = me.Reduce("t0", "sum", values);
    });
    RequireNone(verdicts);
    CHECK(struck > 0);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == mute) continue;
      const Status& heard = status[static_cast<size_t>(rank)];
      INFO("rank " << rank << ": " << heard.message());
      CHECK(heard.code() == Code::kUnavailable);
      CHECK(heard.message().find("rank " + std::to_string(mute) + " has not answered") !=
            std::string::npos);
    }
  }
}

TEST_CASE("ranks that diverge hear it while another process set goes on") {
  for (const WorldOptions& layout : Layouts()) {
    World world(4, layout);
    std::atomic<int> answered{0};
    std::atomic<bool> wrong{false};
    std::vector<Status> status(4);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    world.Run([&](Rank& me) {
      const int first = me.AddProcessSet({0, 1}).value();
      const int second = me.AddProcessSet({2, 3}).value();
      std::vector<float> values(100, 1);
      if (me.rank() >= 2) {
        Request request = test::Tensor(me.rank() == 2 ? "a" : "b", "sum", {100});
        request.process_set = second;
        auto work = me.Submit(request, values.data(), values.data()).value();
        status[static_cast<size_t>(me.rank())] = me.Wait(*work);
        ++answered;
        return;
      }
      // The two leave this loop together.
      for (bool over = false; !over && std::chrono::steady_clock::now() < end;) {
        float stop = answered == 2 ? 1 : 0;
        Request request = test::Tensor("stop", "max", {1});
        request.process_set = first;
        auto work = me.Submit(request, &stop, &stop).value();
        if (!me.Wait(*work).ok()) wrong = true;
        over = stop > 0 || wrong;
      }
    });
    CHECK_FALSE(wrong);
    for (const int rank : {2, 3}) {
      INFO("rank " << rank << ": " << status[static_cast<size_t>(rank)].message());
      CHECK(status[static_cast<size_t>(rank)].code() == Code::kInvalidArgument);
    }
  }
}

// Whatever goes wrong, wherever: every rank gets an answer, and a sum that is not an error is
// right. A message that is lost alone is beyond what transports may do (they are reliable and
// ordered), so that a later one may be taken for it; even then nobody hangs.
TEST_CASE("a transport that fails, drops or delays its k-th transfer hangs nobody") {
  using Kind = Fault::Kind;
  // Adasum sends by itself; it averages what is parallel.
  const std::pair<std::string, int> strikes[] = {{"sum", 1},  {"sum", 2},    {"sum", 5},
                                                 {"sum", 13}, {"adasum", 5}, {"adasum", 13}};
  for (const Kind kind : {Kind::kFail, Kind::kFailProgress, Kind::kDrop, Kind::kDelay}) {
    for (const int local_size : {0, 2}) {
      for (const auto& strike : strikes) {
        const std::string& op = strike.first;
        const int at = strike.second;
        const std::vector<float> right(3000, op == "sum" ? 3 : 1);
        WorldOptions options;
        options.lanes = false;
        options.local_size = local_size;
        options.configure = [](Config& c) {
          c.stall_silence = milliseconds{1200};
          c.stall_shutdown = milliseconds{1200};
        };
        std::atomic<int> struck{0};
        options.wrap = [&](int rank,
                           std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
          Fault fault{rank == 1 ? kind : Kind::kNone, at};
          fault.struck = &struck;
          return std::make_unique<FaultyTransport>(std::move(inner), fault);
        };
        World world(3, options);
        std::vector<std::string> wrong(3);
        world.Run([&](Rank& me) {
          for (int step = 0; step < 4; ++step) {
            std::vector<float> values(3000, 1);
            const Status status = me.Reduce("t" + std::to_string(step), op, values);
            auto& mine = wrong[static_cast<size_t>(me.rank())];
            if (kind != Kind::kDrop && status.ok() && values != right)
              mine = "a wrong sum";
            if (!status.ok() && status.message().empty()) mine = "an error without a reason";
            if (kind == Kind::kDelay && !status.ok()) mine = status.message();
          }
        });
        INFO(op << ", kind " << static_cast<int>(kind) << " at " << at << " local size "
                << local_size);
        for (const std::string& sentence : wrong) CHECK(sentence == "");
        CHECK(struck > 0);
      }
    }
  }
}

}  // namespace
}  // namespace horon
