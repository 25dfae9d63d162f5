// The whole road with thread ranks: what disagrees, leaves or dies, and who is told so.
#include <functional>
#include <latch>
#include <limits>
#include <thread>

#include "test/support/faulty_transport.h"
#include "test/support/road.h"
#include "test/support/wrapped_transport.h"

namespace horon {
namespace {

using test::Fault;
using test::FaultyTransport;
using test::Layouts;
using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Verdicts;
using test::World;
using test::WorldOptions;

// Two ranks submit `mine`, the others `theirs`; all must get a sentence that holds every one of
// `words`.
void ExpectDisagreement(const Request& mine, const Request& theirs,
                        const std::vector<std::string>& words) {
  Verdicts verdicts;
  World(4).Run([&](Rank& me) {
    std::vector<float> values(64, 1.0f);
    const Status status = me.Run(me.rank() % 2 == 0 ? mine : theirs, values.data(), values.data());
    EXPECT(!status.ok() && status.code() == Code::kInvalidArgument, "no error for a disagreement");
    for (const std::string& word : words) {
      EXPECT(status.message().find(word) != std::string::npos,
             "'" + word + "' is not in: " + status.message());
    }
    std::vector<float> after(8, 1.0f);
    EXPECT(me.Reduce("after", "sum", after).ok() && after[0] == 4.0f, "the runtime did not go on");
  });
  RequireNone(verdicts);
}

TEST_CASE("disagreements are errors on every rank that name tensor, ranks and both values") {
  const Request base = Tensor("grad", "sum", {4, 8});
  Request other = base;
  SECTION("shape") {
    other.shape = {8, 4};
    ExpectDisagreement(base, other, {"grad", "[4, 8]", "[8, 4]", "0, 2", "1, 3"});
  }
  SECTION("dtype") {
    other.dtype = DataType::kInt32;
    ExpectDisagreement(base, other, {"grad", "float32", "int32", "0, 2", "1, 3"});
  }
  SECTION("op") {
    other.op = "max";
    ExpectDisagreement(base, other, {"grad", "sum", "max", "0, 2", "1, 3"});
  }
  SECTION("root") {
    Request a = base, b = base;
    a.op = "broadcast:root=0";
    b.op = "broadcast:root=1";
    ExpectDisagreement(a, b, {"grad", "root", "0, 2", "1, 3"});
  }
  SECTION("scale factors") {
    other.prescale = 0.5;
    ExpectDisagreement(base, other, {"grad", "0.5", "1", "0, 2", "1, 3"});
  }
  SECTION("device") {
    other.device = {DeviceKind::kCuda, 0};
    ExpectDisagreement(base, other, {"grad", "CPU", "GPU", "0, 2", "1, 3"});
  }
}

TEST_CASE("a name that is pending is refused at once, and free again afterwards") {
  Verdicts verdicts;
  World(2).Run([&](Rank& me) {
    std::vector<float> a(10, 1), b(10, 1);
    if (me.rank() == 0) {
      auto first = me.Submit(Tensor("twice", "sum", {10}), a.data(), a.data());
      const auto second = me.Submit(Tensor("twice", "sum", {10}), b.data(), b.data());
      EXPECT(first.ok() && !second.ok() && second.status().code() == Code::kInvalidArgument,
             "not refused");
      EXPECT(second.status().message().find("twice") != std::string::npos,
             second.status().message());
      std::vector<float> go(1);
      EXPECT(me.Reduce("go", "sum", go).ok(), "go");
      EXPECT(me.Wait(*first.value()).ok() && a[0] == 2, "the first must not suffer");
    } else {
      std::vector<float> go(1);
      EXPECT(me.Reduce("go", "sum", go).ok(), "go");
      EXPECT(me.Reduce("twice", "sum", a).ok(), "twice");
    }
    EXPECT(me.Reduce("twice", "sum", a).ok(), "the name is not free again");
  });
  RequireNone(verdicts);
}

TEST_CASE("a group fails as one, also when the ranks group differently") {
  for (const int variant : {0, 1, 2}) {
    Verdicts verdicts;
    World(3).Run([&](Rank& me) {
      std::vector<float> a(4, 1), b(4, 1), c(4, 1);
      std::vector<Request> requests = {Tensor("a", "sum", {4}), Tensor("b", "sum", {4})};
      if (variant == 0 && me.rank() == 1) requests[0].shape = {2, 2};  // the first member disagrees
      if (variant == 1 && me.rank() == 1) requests[1].name = "c";      // other members
      if (variant == 2 && me.rank() == 1) {                            // alone, not in a group
        auto first = me.Submit(requests[0], a.data(), a.data());
        auto second = me.Submit(requests[1], b.data(), b.data());
        EXPECT(!me.Wait(*first.value()).ok() && !me.Wait(*second.value()).ok(),
               "single tensors against a group");
      } else {
        auto work = me.SubmitGroup(requests, {a.data(), b.data()}, {a.data(), b.data()}, "g");
        EXPECT(work.ok(), work.status().message());
        const Status status = me.Wait(*work.value());
        EXPECT(!status.ok() && status.code() == Code::kInvalidArgument, "the group did not fail");
      }
      for (int again = 0; again < 2; ++again) {
        a.assign(4, 1), b.assign(4, 1);
        auto work = me.SubmitGroup({Tensor("a", "sum", {4}), Tensor("b", "sum", {4})},
                                   {a.data(), b.data()}, {a.data(), b.data()}, "g");
        const Status status = me.Wait(*work.value());
        EXPECT(status.ok(), "the next try: " + status.message());
        EXPECT(a[3] == 3 && b[0] == 3, "wrong sums");
      }
    });
    INFO("variant " << variant);
    RequireNone(verdicts);
  }
}

TEST_CASE("a rank that leaves fails what needs it, on every rank, and what does not goes on") {
  Verdicts verdicts;
  World(3).Run([&](Rank& me) {
    const auto pair = me.AddProcessSet({0, 1});
    std::vector<float> values(4, 1);
    if (me.rank() == 2) {
      me.runtime().Shutdown();
      return;
    }
    const Status status = me.Reduce("all", "sum", values);
    EXPECT(!status.ok() && status.code() == Code::kAborted, "no error");
    EXPECT(status.message().find("rank 2") != std::string::npos, status.message());
    Request request = Tensor("two", "sum", {4});
    request.process_set = pair.value();
    values.assign(4, 1);
    EXPECT(me.Run(request, values.data(), values.data()).ok() && values[0] == 2,
           "the pair must go on");
  });
  RequireNone(verdicts);
}

TEST_CASE("a rank that submits and leaves without waiting keeps nobody waiting") {
  for (int round = 0; round < 20; ++round) {
    Verdicts verdicts;
    World(3, round % 2 == 0 ? WorldOptions{} : Layouts()[1]).Run([&](Rank& me) {
      std::vector<float> values(round % 3 == 0 ? 100000 : 4, 1);
      const auto count = static_cast<int64_t>(values.size());
      if (me.rank() == round % 3) {
        auto work = me.Submit(Tensor("x", "sum", {count}), values.data(), values.data());
        me.runtime().Shutdown();
        EXPECT(work.value()->done(), "its own work is still pending");
        return;
      }
      const Status status = me.Run(Tensor("x", "sum", {count}), values.data(), values.data());
      EXPECT(status.ok() || status.code() == Code::kAborted, status.message());
      if (status.ok()) EXPECT(values.front() == 3 && values.back() == 3, "a wrong sum");
    });
    RequireNone(verdicts);
  }
}

// Hears nothing while it is told not to.
class Deaf final : public test::WrappedTransport {
 public:
  Deaf(std::unique_ptr<Transport> inner, std::function<bool()> hears)
      : WrappedTransport(std::move(inner)), hears_(std::move(hears)) {}
  Result<bool> Progress() override { return hears_() ? WrappedTransport::Progress() : false; }
  std::chrono::microseconds poll_interval() const override { return std::chrono::microseconds{50}; }

 private:
  std::function<bool()> hears_;
};

TEST_CASE("a rank that ends because of a verdict does not keep others from hearing it") {
  for (const bool one_node : {true, false}) {
    std::atomic<bool> deaf{false}, dead{false};
    WorldOptions options;
    options.local_size = one_node ? 0 : 1;
    options.losses = std::make_shared<Losses>();
    const auto hears = [&] { return !deaf || (one_node ? dead.load() : options.losses->any()); };
    options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
      if (rank == 0) return inner;
      return std::make_unique<Deaf>(std::move(inner), hears);
    };
    World world(2, options);
    std::latch submitted(2);
    Verdicts verdicts;
    world.Run([&](Rank& me) {
      std::vector<float> values(8, 1.0f), go(1, 1.0f);
      std::vector<std::shared_ptr<Work>> works;
      const Shape shape = me.rank() == 1 ? Shape{2, 4} : Shape{8};
      const auto submit = [&](int i) {
        const Request request = Tensor("grad." + std::to_string(i), "sum", shape);
        works.push_back(me.Submit(request, values.data(), values.data()).value());
      };
      const auto refused = [&] {
        for (const auto& work : std::exchange(works, {})) {
          const Status status = me.Wait(*work);
          EXPECT(status.code() == Code::kInvalidArgument, "no mismatch: " + status.message());
          EXPECT(status.message().find("[2, 4]") != std::string::npos, status.message());
        }
      };
      // Verdicts of many frames in several messages, where a ring has room for them.
      const int alone = 3, tensors = one_node ? 150 : alone;
      if (me.rank() == 1) {
        for (int i = 0; i < tensors; ++i) submit(i);
        EXPECT(me.Reduce("go", "sum", go).ok(), "go");  // rank 0 has heard of them
        deaf = true;
        submitted.arrive_and_wait();
        refused();
        const Status after = me.Reduce("go", "sum", go);
        EXPECT(after.code() == Code::kUnavailable, "not lost: " + after.message());
        return;
      }
      EXPECT(me.Reduce("go", "sum", go).ok(), "go");
      submitted.arrive_and_wait();
      for (int i = 0; i < alone; ++i) {
        submit(i);
        refused();
      }
      for (int i = alone; i < tensors; ++i) submit(i);
      refused();
      const std::string sentence = "rank 0 raised HoronMismatch";
      if (one_node) world.MarkDead(0, sentence);
      if (!one_node) options.losses->Report(0, sentence);
      dead = true;
    });
    INFO((one_node ? "one node" : "two nodes"));
    RequireNone(verdicts);
  }
}

TEST_CASE("a dead rank fails everything on the living, with its name") {
  World world(3);
  Verdicts verdicts;
  std::latch first_done(3);
  world.Run([&](Rank& me) {
    std::vector<float> values(100000, 1);
    EXPECT(me.Reduce("first", "sum", values).ok(), "first");
    first_done.arrive_and_wait();
    if (me.rank() == 1) {
      world.MarkDead(1, "rank 1 was killed by signal 9 (SIGKILL)");
      return;
    }
    for (int i = 0; i < 2; ++i) {
      const Status status = me.Reduce("second", "sum", values);
      EXPECT(status.code() == Code::kUnavailable, "not unavailable");
      EXPECT(status.message().find("rank 1 was killed by signal 9") != std::string::npos,
             status.message());
    }
  });
  RequireNone(verdicts);
}

// At some of these places rank 0 has agreed to a tensor and cannot tell the others of it any more:
// it is neither pending nor started then.
TEST_CASE("a tensor that is agreed upon but not started fails with the job") {
  for (int at = 1; at <= 12; ++at) {
    WorldOptions options;
    options.lanes = false;
    options.configure = [](Config& c) { c.lend = false; };
    std::atomic<int> struck{0};
    options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
      Fault stuck{rank == 0 ? Fault::Kind::kDelay : Fault::Kind::kNone, at};
      stuck.delay_looks = std::numeric_limits<int>::max();
      stuck.struck = &struck;
      return std::make_unique<FaultyTransport>(std::move(inner), stuck);
    };
    World world(3, options);
    std::thread killer([&] {
      const std::chrono::milliseconds apart{1}, later{50};
      const auto ends = std::chrono::steady_clock::now() + std::chrono::seconds{30};
      while (struck == 0 && std::chrono::steady_clock::now() < ends)
        std::this_thread::sleep_for(apart);
      std::this_thread::sleep_for(later);  // whatever it meets then
      world.MarkDead(1, "rank 1 was killed by signal 9 (SIGKILL)");
    });
    std::vector<Status> last(3);
    world.Run([&](Rank& me) {
      std::vector<float> values(1000, 1);
      for (Status& status = last[static_cast<size_t>(me.rank())]; status.ok();)
        status = me.Reduce("again", "sum", values);
    });
    killer.join();
    INFO("stuck at " << at);
    CHECK(struck > 0);
    for (const int rank : {0, 2})
      CHECK(last[static_cast<size_t>(rank)].code() == Code::kUnavailable);
  }
}

TEST_CASE("a rank that gives itself up says why to every rank, also when it leaves right after") {
  for (const WorldOptions& layout : Layouts()) {
    for (int culprit = 0; culprit < 4; ++culprit) {
      World world(4, layout);
      Verdicts verdicts;
      std::latch first_done(4);
      world.Run([&](Rank& me) {
        std::vector<float> values(100, 1);
        EXPECT(me.Reduce("first", "sum", values).ok(), "first");
        first_done.arrive_and_wait();
        if (me.rank() == culprit) {
          me.runtime().GiveUp("raised ValueError: bad batch");
          me.runtime().Shutdown();
          return;
        }
        const std::string expected = "rank " + std::to_string(culprit) + " raised ValueError: bad";
        for (int i = 0; i < 2; ++i) {
          const Status status = me.Reduce("second", "sum", values);
          EXPECT(status.code() == Code::kUnavailable, "not unavailable");
          EXPECT(status.message().starts_with(expected), status.message());
        }
      });
      INFO("rank " << culprit);
      RequireNone(verdicts);
    }
  }
}

TEST_CASE("a rank that cannot be told of a loss is not taken for the one that is lost") {
  std::atomic<bool> given_up{false};
  std::atomic<int> struck{0};
  WorldOptions options;
  options.local_size = 1;
  // Rank 1 is not told, and no launcher is here to tell it.
  options.configure = [](Config& c) { c.shutdown_time = std::chrono::milliseconds{100}; };
  options.wrap = [&](int rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    Fault unreachable{rank == 0 ? Fault::Kind::kFail : Fault::Kind::kNone, 2};
    unreachable.armed = &given_up;  // the next report is awaited, and then all are to be told
    unreachable.struck = &struck;
    return std::make_unique<FaultyTransport>(std::move(inner), unreachable);
  };
  World world(3, options);
  Verdicts verdicts;
  std::latch first_done(3);
  world.Run([&](Rank& me) {
    std::vector<float> values(100, 1);
    EXPECT(me.Reduce("first", "sum", values).ok(), "first");
    first_done.arrive_and_wait();
    if (me.rank() == 2) {
      given_up = true;
      me.runtime().GiveUp("raised ValueError: bad batch");
    }
    if (me.rank() != 0) return;
    const auto ends = std::chrono::steady_clock::now() + std::chrono::seconds{30};
    while (!me.runtime().lost() && std::chrono::steady_clock::now() < ends)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    const Status status = me.Reduce("second", "sum", values);
    EXPECT(status.code() == Code::kUnavailable, "not unavailable");
    EXPECT(status.message().starts_with("rank 2 raised ValueError: bad"), status.message());
  });
  CHECK(struck == 1);
  RequireNone(verdicts);
}

TEST_CASE("shutdown fails what is pending; afterwards every call says so") {
  Verdicts verdicts;
  World(2).Run([&](Rank& me) {
    std::vector<float> values(4, 1);
    std::shared_ptr<Work> pending;
    if (me.rank() == 0)
      pending = me.Submit(Tensor("never", "sum", {4}), values.data(), values.data()).value();
    me.runtime().Shutdown();
    if (pending)
      EXPECT(pending->done() && pending->status().code() == Code::kAborted, "still pending");
    EXPECT(me.Reduce("late", "sum", values).code() == Code::kAborted, "a call after shutdown");
  });
  RequireNone(verdicts);
}

}  // namespace
}  // namespace horon
