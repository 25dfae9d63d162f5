// The whole road with thread ranks: what users see of agreement, failure and order.
#include <algorithm>
#include <atomic>
#include <latch>

#include "test/support/catch.h"
#include "test/support/world.h"

namespace horon {
namespace {

using test::Rank;
using test::World;
using test::WorldOptions;

Request Tensor(const std::string& name, const std::string& op, Shape shape,
               DataType dtype = DataType::kFloat32) {
  Request request;
  request.name = name;
  request.op = op;
  request.shape = std::move(shape);
  request.dtype = dtype;
  return request;
}

// Catch's assertions are not thread safe: ranks collect sentences, the test's thread checks them.
struct Verdicts {
  std::mutex mutex;
  std::vector<std::string> wrong;
  void Expect(bool ok, const std::string& what) {
    if (ok) return;
    std::lock_guard lock(mutex);
    wrong.push_back(what);
  }
  ~Verdicts() = default;
};
#define EXPECT(cond, what) \
  verdicts.Expect((cond), std::string("rank ") + std::to_string(me.rank()) + ": " + (what))
void RequireNone(const Verdicts& verdicts) {
  for (const std::string& sentence : verdicts.wrong) UNSCOPED_INFO(sentence);
  REQUIRE(verdicts.wrong.empty());
}

std::vector<WorldOptions> Layouts() {
  WorldOptions no_lanes, two_nodes, no_lend;
  no_lanes.lanes = false;
  two_nodes.local_size = 2;
  no_lend.configure = [](Config& c) { c.lend = false; };
  return {{}, no_lanes, two_nodes, no_lend};
}

TEST_CASE("every rank gets the sum, in every layout, from 1 to 5 ranks") {
  for (const WorldOptions& layout : Layouts()) {
    for (int n = 1; n <= 5; ++n) {
      Verdicts verdicts;
      World(n, layout).Run([&](Rank& me) {
        for (int step = 0; step < 20; ++step) {
          std::vector<float> values(static_cast<size_t>(step * 997 + 1),
                                    static_cast<float>(me.rank() + step));
          const Status status =
              me.Reduce("x", "sum", values);  // the shape changes: the cache must notice
          EXPECT(status.ok(), status.message());
          const float want = static_cast<float>(n * (n - 1) / 2 + n * step);
          EXPECT(std::all_of(values.begin(), values.end(), [&](float v) { return v == want; }),
                 "wrong sum in step " + std::to_string(step));
        }
      });
      RequireNone(verdicts);
    }
  }
}

TEST_CASE("ranks may submit in any order; many tensors are in flight at once") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(4, layout).Run([&](Rank& me) {
      constexpr int kTensors = 60;
      std::vector<std::vector<float>> tensors(kTensors);
      for (int step = 0; step < 5; ++step) {
        std::vector<std::shared_ptr<Work>> works(kTensors);
        for (int i = 0; i < kTensors; ++i) {
          const int t = (i * 7 + me.rank() * 13) % kTensors;
          tensors[static_cast<size_t>(t)].assign(static_cast<size_t>(1 + t * t * 5),
                                                 static_cast<float>(me.rank() + t));
          auto& values = tensors[static_cast<size_t>(t)];
          auto work = me.Submit(
              Tensor("t" + std::to_string(t), "average", {static_cast<int64_t>(values.size())}),
              values.data(), values.data());
          EXPECT(work.ok(), work.status().message());
          if (work.ok()) works[static_cast<size_t>(t)] = work.value();
        }
        for (int t = 0; t < kTensors; ++t) {
          const Status status = me.Wait(*works[static_cast<size_t>(t)]);
          EXPECT(status.ok(), status.message());
          EXPECT(tensors[static_cast<size_t>(t)].back() == 1.5f + static_cast<float>(t),
                 "wrong average of tensor " + std::to_string(t));
        }
      }
    });
    RequireNone(verdicts);
  }
}

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

TEST_CASE("100 small tensors share one bucket; with threshold 0 each has its own") {
  for (const bool fused : {true, false}) {
    WorldOptions options;
    if (!fused) options.configure = [](Config& c) { c.fusion_bytes = 0; };
    World world(2, options);
    Verdicts verdicts;
    world.Run([&](Rank& me) {
      std::vector<std::vector<float>> tensors(100, std::vector<float>(10, 1));
      std::vector<Request> requests;
      std::vector<const void*> inputs;
      std::vector<void*> outputs;
      for (int i = 0; i < 100; ++i) {
        requests.push_back(Tensor("t" + std::to_string(i), "sum", {10}));
        inputs.push_back(tensors[static_cast<size_t>(i)].data());
        outputs.push_back(tensors[static_cast<size_t>(i)].data());
      }
      auto work = me.SubmitGroup(requests, inputs, outputs, "all");
      EXPECT(me.Wait(*work.value()).ok() && tensors[99][9] == 2, "wrong sum");
      EXPECT(me.runtime().counters()["executor.buckets"].value() == (fused ? 1 : 100),
             "wrong number of buckets");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("the second step travels as bits only") {
  World world(3);
  Verdicts verdicts;
  world.Run([&](Rank& me) {
    std::vector<float> values(5, 1);
    for (int i = 0; i < 10; ++i) EXPECT(me.Reduce("w", "sum", values).ok(), "w");
    EXPECT(me.runtime().counters()["negotiation.inproc.requests"].value() == 1,
           "a name travelled again");
    EXPECT(me.runtime().counters()["negotiation.inproc.bits"].value() == 9, "bits were not used");
  });
  RequireNone(verdicts);
}

TEST_CASE("a response cache that is too small evicts and goes on") {
  WorldOptions options;
  options.configure = [](Config& c) { c.cache_capacity = 3; };
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    for (int step = 0; step < 30; ++step) {
      std::vector<std::vector<float>> tensors(7, std::vector<float>(3, 1));
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < 7; ++i) {
        const int t = (i + me.rank() * step) % 7;
        works.push_back(me.Submit(Tensor(std::to_string(t), "sum", {3}),
                                  tensors[static_cast<size_t>(t)].data(),
                                  tensors[static_cast<size_t>(t)].data())
                            .value());
      }
      for (auto& work : works) EXPECT(me.Wait(*work).ok(), work->status().message());
      for (auto& t : tensors) EXPECT(t[0] == 3, "wrong sum");
    }
  });
  RequireNone(verdicts);
}

TEST_CASE("process sets run side by side; outsiders are refused") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(4, layout).Run([&](Rank& me) {
      const auto even = me.AddProcessSet({0, 2});
      const auto odd = me.AddProcessSet({1, 3});
      EXPECT(even.ok() && odd.ok() && even.value() == 1 && odd.value() == 2, "numbers of the sets");
      EXPECT(!me.AddProcessSet({0, 2}).ok(), "the same set twice");
      for (int i = 0; i < 20; ++i) {
        std::vector<float> mine(500, static_cast<float>(me.rank())), all(500, 1);
        Request request = Tensor("mine", "sum", {500});
        request.process_set = me.rank() % 2 == 0 ? even.value() : odd.value();
        auto work = me.Submit(request, mine.data(), mine.data());
        EXPECT(me.Reduce("all", "sum", all).ok() && all[7] == 4, "the whole job's sum");
        EXPECT(me.Wait(*work.value()).ok() && mine[499] == (me.rank() % 2 == 0 ? 2 : 4),
               "the set's sum");
      }
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("ranks that add different process sets are told so, and may try again") {
  Verdicts verdicts;
  World(3).Run([&](Rank& me) {
    const auto wrong =
        me.AddProcessSet(me.rank() == 1 ? std::vector<int>{1, 2} : std::vector<int>{0, 1});
    EXPECT(!wrong.ok() && wrong.status().code() == Code::kInvalidArgument, "no error");
    EXPECT(wrong.status().message().find("[1, 2]") != std::string::npos, wrong.status().message());
    const auto right = me.AddProcessSet({0, 1});
    EXPECT(right.ok() && right.value() == 1, "the second try");
  });
  RequireNone(verdicts);
}

TEST_CASE("outputs whose size only negotiation knows belong to the work") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(4, layout).Run([&](Rank& me) {
      const int rows = me.rank() * 3;  // rank 0 has none
      std::vector<float> mine(static_cast<size_t>(rows) * 2, static_cast<float>(me.rank()));
      std::shared_ptr<Work> work;
      const Status status =
          me.Run(Tensor("rows", "allgather", {rows, 2}), mine.data(), nullptr, &work);
      EXPECT(status.ok(), status.message());
      const Output& output = work->outputs()[0];
      EXPECT(output.shape == Shape({18, 2}), ToString(output.shape));
      const auto* values = reinterpret_cast<const float*>(output.data);
      for (int i = 0; i < 36; ++i) {
        const int from = i < 6 ? 1 : i < 18 ? 2 : 3;
        EXPECT(values[i] == static_cast<float>(from), "element " + std::to_string(i));
      }
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("ragged allgathers fuse alike on ranks whose own parts weigh differently") {
  WorldOptions options;
  options.configure = [](Config& c) {
    c.fusion_bytes = 400;
  };  // some ranks' own bytes fit, others' do not
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    constexpr int kTensors = 12;
    std::vector<std::vector<float>> mine(kTensors);
    std::vector<Request> requests;
    std::vector<const void*> inputs;
    for (int t = 0; t < kTensors; ++t) {
      const int rows = (me.rank() * 7 + t) % 30;
      mine[static_cast<size_t>(t)].assign(static_cast<size_t>(rows), static_cast<float>(me.rank()));
      requests.push_back(Tensor("t" + std::to_string(t), "allgather", {rows}));
      inputs.push_back(mine[static_cast<size_t>(t)].data());
    }
    auto work = me.SubmitGroup(requests, inputs, std::vector<void*>(kTensors, nullptr), "g");
    EXPECT(work.ok() && me.Wait(*work.value()).ok(),
           work.ok() ? work.value()->status().message() : "refused");
    for (int t = 0; t < kTensors; ++t) {
      const int64_t want = t % 30 + (7 + t) % 30 + (14 + t) % 30;
      EXPECT(work.value()->outputs()[static_cast<size_t>(t)].shape == Shape({want}),
             "shape of tensor " + std::to_string(t));
    }
  });
  RequireNone(verdicts);
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

TEST_CASE("process sets come and go under tensors that still travel in them") {
  for (const WorldOptions& layout : Layouts()) {
    Verdicts verdicts;
    World(3, layout).Run([&](Rank& me) {
      const std::vector<std::vector<int>> kinds = {{0, 1}, {1, 2}, {0, 1, 2}, {0, 2}};
      for (int round = 0; round < 24; ++round) {
        const std::vector<int>& ranks = kinds[static_cast<size_t>(round) % 4];
        const bool in = std::find(ranks.begin(), ranks.end(), me.rank()) != ranks.end();
        if (ranks.size() == 3) continue;
        const auto set = me.AddProcessSet(ranks);
        EXPECT(set.ok(), set.status().message());
        std::vector<float> values(20000, 1);
        std::shared_ptr<Work> rows, sum, last;
        if (in) {
          Request request = Tensor("rows", "allgather", {me.rank() + 1});
          request.process_set = set.value();
          rows = me.Submit(request, values.data(), nullptr).value();
          request = Tensor("sum", "sum", {20000});
          request.process_set = set.value();
          sum = me.Submit(request, values.data(), values.data()).value();
          if (me.rank() == ranks[0]) {  // the other never submits this one
            request = Tensor("never", "sum", {1});
            request.process_set = set.value();
            static float lone[3];
            last = me.Submit(request, &lone[me.rank()], &lone[me.rank()]).value();
          }
        }
        const Status removed = me.RemoveProcessSet(set.value());
        EXPECT(removed.ok(), removed.message());
        if (!in) continue;
        for (const auto& work : {rows, sum}) {
          const Status status = me.Wait(*work);
          EXPECT(status.ok() || status.code() == Code::kInvalidArgument, status.message());
        }
        if (sum->status().ok()) EXPECT(values[19999] == 2, "a wrong sum");
        if (last)
          EXPECT(me.Wait(*last).code() == Code::kInvalidArgument,
                 "what was pending in a removed set");
      }
      std::vector<float> all(3, 1);
      EXPECT(me.Reduce("all", "sum", all).ok() && all[0] == 3, "the job goes on");
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("rank 0's fusion threshold holds for all") {
  std::atomic<int> made{0};
  WorldOptions options;
  options.configure = [](Config&) {};
  options.configure_rank = [&](int rank, Config& c) {
    c.fusion_bytes = rank == 0 ? 80 : 1 << 20, ++made;
  };
  Verdicts verdicts;
  World(3, options).Run([&](Rank& me) {
    std::vector<std::vector<float>> tensors(6, std::vector<float>(10, 1));
    std::vector<Request> requests;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (auto& t : tensors) {
      requests.push_back(Tensor("t" + std::to_string(requests.size()), "sum", {10}));
      inputs.push_back(t.data());
      outputs.push_back(t.data());
    }
    auto work = me.SubmitGroup(requests, inputs, outputs, "g");
    EXPECT(me.Wait(*work.value()).ok() && tensors[5][9] == 3, "wrong sum");
    EXPECT(me.runtime().counters()["executor.buckets"].value() == 3, "not rank 0's plan");
  });
  RequireNone(verdicts);
  CHECK(made == 3);
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
