// Executors alone: one a rank, fed with buckets made by hand, over a net inside this process that
// delivers late and in any order, without runtime, negotiator or thread. The test steps them.
#include "runtime/core/executor.h"

#include <algorithm>
#include <random>

#include "test/support/catch.h"
#include "test/support/loop_transport.h"
#include "test/support/reference.h"
#include "test/unit/ops/adasum_reference.h"

namespace horon {
namespace {

using test::Bytes;
using test::LoopWorld;
using test::Values;
using SharedWork = std::shared_ptr<Work>;

// What all ranks submit of one tensor.
struct Tensor {
  Request request;
  std::vector<Values> values;  // by rank
  enum { kInPlace, kUsers, kWorks } output = kInPlace;
};

Tensor Make(const std::string& name, const std::string& op, int size, int64_t count,
            DataType dtype = DataType::kFloat32) {
  Tensor tensor;
  tensor.request.name = name;
  tensor.request.op = op;
  tensor.request.dtype = dtype;
  for (int rank = 0; rank < size; ++rank)
    tensor.values.push_back(test::SmallValues(dtype, rank, count));
  return tensor;
}

// A bucket as one rank has started it.
struct Started {
  std::vector<SharedRegistration> what;
  std::vector<SharedWork> works;
  std::vector<Bytes> inputs, outputs;  // lent

  bool done() const {
    return std::all_of(works.begin(), works.end(), [](const auto& work) { return work->done(); });
  }
  // Once done.
  std::string message(size_t i = 0) const { return works[i]->status().message(); }
  Bytes Result(size_t i = 0) const {
    const Output& output = works[i]->outputs()[0];
    const int64_t bytes = output.users ? static_cast<int64_t>(inputs[i].size())
                                       : CountOf(output.shape()) * SizeOf(what[i]->request.dtype);
    return Bytes(output.data, output.data + bytes);
  }
};

// One rank.
struct Side {
  Side(LoopWorld& world, int rank, Executor::LaneFactory make_lane,
       std::shared_ptr<SharedSegment> node)
      : fabric(world.fabric(rank)),
        sets(world.size()),
        timeline(rank, true, counters),
        executor(fabric, {fabric.route[static_cast<size_t>(rank)]}, sets, std::move(make_lane),
                 counters, nullptr, timeline, nullptr, false, nullptr, std::move(node)) {}

  // Nothing of the pool's is in use.
  bool PoolIsFree() {
    fabric.host_pool->Trim();
    return fabric.host_pool->held_bytes() == 0;
  }

  const Fabric& fabric;
  Counters counters;
  ProcessSets sets;
  Timeline timeline;
  Executor executor;
};

class Sides {
 public:
  explicit Sides(const Topology& topology, uint64_t seed = 1, bool lanes = false)
      : world_(topology, seed) {
    const auto segment = SharedSegment::InProcess(SegmentShape::For(world_.size(), 0, 4096));
    const auto regions = std::make_shared<const SharedRegions>();
    std::vector<std::shared_ptr<SharedSegment>> nodes;
    for (int node = 0; node < topology.nodes(); ++node) {
      const auto ranks = static_cast<int>(topology.members(node).size());
      nodes.push_back(SharedSegment::InProcess(SegmentShape::For(ranks, 0, 4096)).value());
    }
    for (int rank = 0; rank < world_.size(); ++rank) {
      all_.push_back(rank);
      sides_.push_back(std::make_unique<Side>(
          world_, rank,
          [=, all = segment.value()](int32_t set,
                                     const std::vector<int>& ranks) -> std::unique_ptr<Lane> {
            if (!lanes || ranks.size() < 2) return nullptr;
            const auto me = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
            return std::make_unique<Lane>(
                LaneGroup{all, regions, set, ranks, static_cast<int>(me)});
          },
          nodes[static_cast<size_t>(topology.node_of(rank))]));
    }
  }

  const std::vector<int>& all() const { return all_; }
  Side& operator[](int rank) { return *sides_[static_cast<size_t>(rank)]; }
  Executor& executor(int rank) { return (*this)[rank].executor; }
  test::LoopNet& net() { return world_.net(); }
  void AddSet(int32_t set, const std::vector<int>& ranks) {
    for (const auto& side : sides_) side->sets.Add(set, ranks);
  }

  // As agreed by the ranks of their process set. `op`: in place of the one named.
  Started Start(int rank, const std::vector<Tensor>& tensors, const Locked& locked = {},
                Op* op = nullptr, const std::vector<int>& away = {}, Kept kept = Kept::kNot) {
    Started started;
    Bucket bucket;
    bucket.last = true;
    for (const Tensor& tensor : tensors) {
      started.inputs.push_back(
          test::Encode(tensor.request.dtype, tensor.values[static_cast<size_t>(rank)]));
      started.outputs.push_back(Bytes(started.inputs.back().size(), std::byte{0xee}));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      const ProcessSets::Ranks ranks = (*this)[rank].sets.Find(tensor.request.process_set);
      std::vector<Request> requests;
      std::vector<const Request*> by_rank;
      Request mine;
      for (int member : *ranks) {
        requests.push_back(tensor.request);
        requests.back().shape = {
            static_cast<int64_t>(tensor.values[static_cast<size_t>(member)].size())};
        if (member == rank) mine = requests.back();
      }
      for (const Request& request : requests) by_rank.push_back(&request);
      Op* const run = op != nullptr ? op : ops_.Find(tensor.request.op).value();
      Entry entry;
      entry.what = started.what.emplace_back(std::make_shared<Registration>(mine, run));
      REQUIRE(entry.what->Claim());
      entry.promise = Promise(started.works.emplace_back(std::make_shared<Work>(1)), 0, entry.what);
      entry.input = started.inputs[i].data();
      if (tensor.output == Tensor::kInPlace) entry.output = started.inputs[i].data();
      if (tensor.output == Tensor::kUsers) entry.output = started.outputs[i].data();
      entry.agreed = run->Check(by_rank, *ranks).value();
      entry.agreed.away = away;
      entry.kept = kept;
      entry.ranks = ranks;
      entry.locked = locked;
      bucket.bytes += entry.what->bytes;
      bucket.entries.push_back(std::move(entry));
    }
    executor(rank).Start(std::move(bucket));
    return started;
  }
  // On all ranks; by rank.
  std::vector<Started> Start(const std::vector<Tensor>& tensors, const Locked& locked = {},
                             Op* op = nullptr) {
    std::vector<Started> started;
    for (int rank : all_) started.push_back(Start(rank, tensors, locked, op));
    return started;
  }

  // These ranks only, until nothing moves any more.
  void Settle(const std::vector<int>& ranks) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank : ranks) {
        const Result<bool> advanced = executor(rank).Advance();
        INFO("rank " << rank << ": " << advanced.status().message());
        REQUIRE(advanced.ok());
        moved = moved || advanced.value();
      }
    }
  }
  void Settle() { Settle(all_); }
  // Whether all of it ended well, and nothing of it is left.
  void RequireIdle() {
    REQUIRE(net().idle());
    for (int rank : all_) {
      REQUIRE(executor(rank).idle());
      REQUIRE(executor(rank).oldest() == nullptr);
      REQUIRE(executor(rank).oldest_number() == 0);
    }
  }

 private:
  OpTable ops_;
  LoopWorld world_;
  std::vector<int> all_;
  std::vector<std::unique_ptr<Side>> sides_;
};

Topology Apart(int size) { return Topology::Blocks(size, 1); }

Values Sum(const Tensor& tensor) {
  return test::Reduced(ReduceKind::kSum, tensor.request.dtype, tensor.values, 1.0, 1.0);
}

bool IsAdasum(const Tensor& tensor, const Values& result) {
  std::vector<test::Summand> leaves;
  for (const Values& values : tensor.values) leaves.push_back({values, 1});
  return test::GapOf(result, test::AdasumTree(leaves).value, tensor.values) < 1e-5;
}

// An op that waits until the test lets it end, with this status.
class Held final : public Op, public Waitable {
 public:
  bool Ready() override { return open; }
  Task Run(Stage& stage) override {
    ++runs;
    ranks = stage.comm().ranks();
    set_size = stage.set_size();
    co_await Until(*this);
    co_return ends_with;
  }
  void Skip(Stage&) override { ++skips; }

  bool open = false;
  Status ends_with;
  int runs = 0, skips = 0, set_size = 0;
  std::vector<int> ranks;
};

TEST_CASE("executor: what is left out waits for the tensor's bucket before it, and for no other") {
  for (const bool away : {false, true}) {
    Sides sides(Apart(2));
    Held op;
    const Tensor w = Make("w", "sum", 2, 3), other = Make("other", "sum", 2, 3);
    const Started first = sides.Start(0, {w}, {}, &op);
    const std::vector<int> gone = away ? std::vector<int>{0} : std::vector<int>{};
    const Started after = sides.Start(0, {w}, {}, &op, gone, Kept::kWithAll);
    sides.Settle({0});
    CHECK(op.runs == 1);
    CHECK(op.skips == 0);
    CHECK_FALSE(after.done());
    const Started beside = sides.Start(0, {other}, {}, &op, {}, Kept::kWithAll);
    const Started late = sides.Start(0, {other}, {}, &op, {}, Kept::kLate);
    sides.Settle({0});
    CHECK((beside.done() && late.done()));
    CHECK(op.skips == 1);  // the late one was counted before
    op.open = true;
    sides.Settle({0});
    CHECK((first.done() && after.done()));
    CHECK(op.skips == 2);
    CHECK(sides.executor(0).idle());
  }
}

TEST_CASE("executor: the tensors of a bucket are reduced together, scaled, into any output") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const bool lanes : {false, true}) {
      if (lanes && topology.nodes() > 1) continue;
      const int size = topology.size();
      INFO(size << " ranks, " << topology.nodes() << " nodes" << (lanes ? ", lanes" : ""));
      for (const bool average : {false, true}) {
        Sides sides(topology, 1, lanes);
        std::vector<Tensor> tensors;
        int64_t bytes = 0;
        for (const int64_t count : {3, 0, 1000, 17, 3000}) {
          tensors.push_back(
              Make("t" + std::to_string(count), average ? "average" : "sum", size, count));
          tensors.back().request.prescale = 0.5;
          tensors.back().request.postscale = 4;
          tensors.back().output = count == 3      ? Tensor::kInPlace
                                  : count == 1000 ? Tensor::kWorks
                                                  : Tensor::kUsers;
          bytes += 4 * count;
        }
        const std::vector<Started> started = sides.Start(tensors);
        sides.Settle();
        sides.RequireIdle();
        for (int rank : sides.all()) {
          const Started& mine = started[static_cast<size_t>(rank)];
          REQUIRE(mine.done());
          for (size_t i = 0; i < tensors.size(); ++i) {
            REQUIRE(mine.message(i) == "");
            REQUIRE(test::Near(DataType::kFloat32, test::Decode(DataType::kFloat32, mine.Result(i)),
                               test::Reduced(ReduceKind::kSum, DataType::kFloat32,
                                             tensors[i].values, 0.5, average ? 4.0 / size : 4)));
          }
          Counters& counters = sides[rank].counters;
          CHECK(counters["executor.buckets"].value() == 1);
          CHECK(counters["executor.tensors"].value() == 5);
          CHECK(counters["executor.bytes"].value() == bytes);
        }
      }
    }
  }
}

TEST_CASE("executor: a step waits for nobody, and writes nothing before all have started") {
  for (const bool lanes : {false, true}) {
    Sides sides(lanes ? Topology::OneNode(2) : Apart(2), 1, lanes);
    const Tensor tensor = Make("w", "sum", 2, 5000);
    const Started first = sides.Start(0, {tensor});
    sides.Settle({0});
    for (int step = 0; step < 100; ++step) {
      const Result<bool> moved = sides.executor(0).Advance();
      REQUIRE(moved.ok());
      CHECK_FALSE(moved.value());
    }
    CHECK_FALSE(first.done());
    CHECK(first.inputs[0] == test::Encode(DataType::kFloat32, tensor.values[0]));
    CHECK(sides.executor(0).oldest()->name == "w");
    const Started second = sides.Start(1, {tensor});
    sides.Settle();
    sides.RequireIdle();
    REQUIRE(first.done());
    CHECK(test::Decode(DataType::kFloat32, first.Result()) == Sum(tensor));
    CHECK(second.Result() == first.Result());
  }
}

TEST_CASE("executor: buckets in flight end in the order that their ops do") {
  Sides sides(Topology::OneNode(1));
  std::vector<Held> ops(3);
  std::vector<Started> started;
  for (size_t i = 0; i < 3; ++i)
    started.push_back(sides.Start(0, {Make("t" + std::to_string(i), "held", 1, 3)}, {}, &ops[i]));
  Executor& executor = sides.executor(0);
  sides.Settle();
  const auto check = [&](std::vector<bool> done, uint64_t oldest) {
    for (size_t i = 0; i < 3; ++i) CHECK(started[i].done() == done[i]);
    CHECK(executor.oldest_number() == oldest);
    CHECK(executor.idle() == (oldest == 0));
    CHECK(executor.Describe().size() ==
          static_cast<size_t>(std::count(done.begin(), done.end(), false)));
  };
  check({false, false, false}, 1);
  CHECK(executor.oldest()->name == "t0");
  CHECK(executor.Describe()[1].find("tensor 't1' began") == 0);
  ops[1].open = true;
  CHECK(executor.Advance().value());
  check({false, true, false}, 1);
  ops[0].open = true;
  CHECK(executor.Advance().value());
  check({true, true, false}, 3);
  CHECK(executor.oldest()->name == "t2");
  ops[2].open = true;
  CHECK(executor.Advance().value());
  check({true, true, true}, 0);
  CHECK_FALSE(executor.Advance().value());
  for (const Held& op : ops) CHECK(op.runs == 1);
}

TEST_CASE("executor: a process set does not wait for another one's ranks") {
  Sides sides(Apart(3));
  sides.AddSet(1, {0, 1});
  sides.AddSet(2, {0, 2});
  Tensor slow = Make("slow", "sum", 3, 1000), fast = Make("fast", "sum", 3, 1000);
  slow.request.process_set = 1;
  fast.request.process_set = 2;
  const Started slow_0 = sides.Start(0, {slow}), fast_0 = sides.Start(0, {fast});
  const Started fast_2 = sides.Start(2, {fast});
  sides.Settle();
  REQUIRE(fast_0.done());
  CHECK(fast_2.done());
  CHECK_FALSE(slow_0.done());
  CHECK(sides.executor(0).oldest_number() == 1);
  const Started slow_1 = sides.Start(1, {slow});
  sides.Settle();
  sides.RequireIdle();
  const auto sum = [](const Tensor& tensor, size_t a, size_t b) {
    return test::Reduced(ReduceKind::kSum, DataType::kFloat32, {tensor.values[a], tensor.values[b]},
                         1.0, 1.0);
  };
  CHECK(test::Decode(DataType::kFloat32, slow_0.Result()) == sum(slow, 0, 1));
  CHECK(test::Decode(DataType::kFloat32, fast_0.Result()) == sum(fast, 0, 2));
  CHECK(slow_1.Result() == slow_0.Result());
  CHECK(fast_2.Result() == fast_0.Result());
}

TEST_CASE("executor: over messages four buckets of a process set are under way, the next wait") {
  Sides sides(Apart(2));
  std::vector<Tensor> tensors;
  std::vector<Started> first, second;
  std::vector<int64_t> messages{0};  // sent after so many buckets
  for (int i = 0; i < 9; ++i) {
    tensors.push_back(Make("t" + std::to_string(i), "sum", 2, 1000));
    first.push_back(sides.Start(0, {tensors.back()}));
    sides.Settle({0});
    messages.push_back(sides.net().messages_sent(0));
  }
  CHECK(messages[1] > 0);
  for (size_t i = 2; i <= 4; ++i) CHECK(messages[i] == static_cast<int64_t>(i) * messages[1]);
  for (size_t i = 5; i <= 9; ++i) CHECK(messages[i] == messages[4]);
  for (const Tensor& tensor : tensors) second.push_back(sides.Start(1, {tensor}));
  sides.Settle();
  sides.RequireIdle();
  for (size_t i = 0; i < 9; ++i) {
    REQUIRE(first[i].done());
    CHECK(test::Decode(DataType::kFloat32, first[i].Result()) == Sum(tensors[i]));
    CHECK(second[i].Result() == first[i].Result());
  }
}

TEST_CASE("executor: nothing moves while it is held") {
  Sides sides(Apart(2));
  const Tensor tensor = Make("w", "sum", 2, 10);
  const std::vector<Started> started = sides.Start({tensor});
  for (int step = 0; step < 20; ++step) {
    for (int rank : sides.all()) CHECK_FALSE(sides.executor(rank).Advance(true).value());
  }
  CHECK(sides.net().messages_sent(0) + sides.net().messages_sent(1) == 0);
  sides.Settle();
  for (const Started& mine : started) {
    REQUIRE(mine.done());
    CHECK(test::Decode(DataType::kFloat32, mine.Result()) == Sum(tensor));
  }
}

TEST_CASE("executor: ranks that have joined skip a bucket, which the others run without them") {
  Sides sides(Apart(4));
  Held op;
  op.open = true;
  const Tensor tensor = Make("w", "held", 4, 3);
  for (int rank : sides.all()) {
    const Started started = sides.Start(rank, {tensor}, {}, &op, {0, 2});
    if (rank % 2 == 0) CHECK(started.done());
    sides.Settle();
    REQUIRE(started.done());
    CHECK(started.message() == "");
  }
  CHECK(op.skips == 2);
  CHECK(op.runs == 2);
  CHECK(op.ranks == std::vector<int>{1, 3});
  CHECK(op.set_size == 4);
}

// --- failures ----------------------------------------------------------------------------------

TEST_CASE("executor: what cannot be taken back is refused in a locked schedule") {
  Tensor on_gpu = Make("w", "sum", 1, 3), staged = Make("w", "dissemination", 1, 3);
  on_gpu.request.device = {DeviceKind::kCuda, 0};
  for (const Tensor& tensor : {on_gpu, staged}) {
    Sides sides(Topology::OneNode(1));
    const Started fine = sides.Start(0, {Make("v", "sum", 1, 3)}, {1, 7, 1});
    const Started started = sides.Start(0, {tensor}, {1, 7, 2});
    REQUIRE(started.done());
    CHECK(started.message().find("tensor 'w' is in a locked schedule, whose buckets are") == 0);
    CHECK(sides.executor(0).Advance().status().code() == Code::kInternal);
    CHECK_FALSE(fine.done());
    CHECK(sides.executor(0).TakeBack(0).size() == 1);
  }
}

TEST_CASE("executor: an op that fails fails the tensors of its bucket, and no others") {
  for (const Code code : {Code::kInvalidArgument, Code::kUnsupported, Code::kAborted}) {
    Sides sides(Apart(2));
    Held fails;
    fails.open = true;
    fails.ends_with = Status(code, "no way");
    const Tensor before = Make("before", "sum", 2, 100), after = Make("after", "sum", 2, 100);
    const std::vector<Started> good = sides.Start({before});
    const std::vector<Started> bad =
        sides.Start({Make("a", "held", 2, 3), Make("b", "held", 2, 3)}, {}, &fails);
    const std::vector<Started> later = sides.Start({after});
    sides.Settle();
    sides.RequireIdle();
    for (size_t rank = 0; rank < 2; ++rank) {
      REQUIRE(bad[rank].done());
      for (const SharedWork& work : bad[rank].works) {
        CHECK(work->status().code() == code);
        CHECK(work->status().message() == "no way");
      }
      for (const SharedRegistration& what : bad[rank].what) CHECK_FALSE(what->pending());
      CHECK(test::Decode(DataType::kFloat32, good[rank].Result()) == Sum(before));
      CHECK(test::Decode(DataType::kFloat32, later[rank].Result()) == Sum(after));
    }
  }
}

// What a tensor's error says that was under way in place when all failed.
std::string Marked(const std::string& status, const std::string& name) {
  return status + "; tensor '" + name + "' was under way in place and may be partly written";
}

TEST_CASE("executor: what may have failed here only ends the runtime, but for a rank alone") {
  for (const Code code : {Code::kUnavailable, Code::kInternal}) {
    for (const int size : {1, 2}) {
      Sides sides(Apart(size));
      Held fails;
      fails.open = true;
      fails.ends_with = Status(code, "no way");
      const Started bad = sides.Start(0, {Make("bad", "held", size, 3)}, {}, &fails);
      const Started good = sides.Start(0, {Make("good", "sum", size, 3)});
      const Status status = sides.executor(0).Advance().status();
      if (size == 1) {
        CHECK(status.ok());
        REQUIRE(bad.done());
        CHECK(bad.message() == "no way");
        CHECK(good.done());
        continue;
      }
      CHECK(status.code() == code);
      CHECK_FALSE(bad.done());  // the cause may be known better elsewhere
      CHECK(sides.executor(0).Advance().status().message() == "no way");
      sides.executor(0).FailAll(Status::Unavailable("rank 1 died"));
      REQUIRE(bad.done());
      REQUIRE(good.done());
      CHECK(bad.message() == Marked("rank 1 died", "bad"));
      CHECK(good.message() == Marked("rank 1 died", "good"));
      CHECK(sides.executor(0).idle());
    }
  }
}

TEST_CASE("executor: a transport that fails at any post is a failure of the step") {
  bool failed = true;
  int64_t post = 0;
  for (; failed && post < 1000; ++post) {
    INFO("after " << post << " others");
    Sides sides(Apart(3), static_cast<uint64_t>(post + 1));
    sides.net().FailPostAfter(post);
    std::vector<std::vector<Started>> buckets;
    for (const char* op : {"sum", "broadcast:root=1", "allgather"})
      buckets.push_back(sides.Start({Make(op, op, 3, 2000)}));
    std::vector<Status> statuses(3);
    for (int step = 0; step < 200; ++step) {
      for (size_t rank = 0; rank < 3; ++rank) {
        if (statuses[rank].ok())
          statuses[rank] = sides.executor(static_cast<int>(rank)).Advance().status();
      }
    }
    const auto failures = std::count_if(statuses.begin(), statuses.end(),
                                        [](const Status& status) { return !status.ok(); });
    failed = failures > 0;
    CHECK(failures <= 1);
    for (int rank : sides.all()) sides.executor(rank).FailAll(Status::Unavailable("lost"));
    CHECK(sides.net().lent() == 0);
    bool lost = false;
    for (const auto& bucket : buckets) {
      for (const Started& started : bucket) {
        REQUIRE(started.done());
        if (started.message() == "") continue;
        CHECK(started.message() == Marked("lost", started.what[0]->request.name));
        lost = true;
      }
    }
    CHECK(lost == failed);
  }
  CHECK_FALSE(failed);  // there were no more posts
  CHECK(post > 20);
}

TEST_CASE("executor: when all fails no transfer and no scratch is left, wherever it was") {
  size_t works = 0;
  for (int steps = 0; steps < 60; ++steps) {
    INFO(steps << " steps");
    Sides sides(Topology::Blocks(4, 2), static_cast<uint64_t>(steps + 1));
    {
      std::vector<std::vector<Started>> buckets;
      for (const char* op : {"sum", "adasum", "allgather", "broadcast:root=3", "topk:ratio=0.5",
                             "average", "dissemination"}) {
        Tensor tensor = Make(op, op, 4, 3000);
        tensor.output = Tensor::kWorks;
        buckets.push_back(sides.Start({tensor}));
      }
      for (int step = 0; step < steps; ++step) {
        for (int rank : sides.all()) REQUIRE(sides.executor(rank).Advance().ok());
      }
      for (int rank : sides.all()) {
        sides.executor(rank).FailAll(Status::Unavailable("rank 3 died"));
        CHECK(sides.executor(rank).idle());
      }
      CHECK(sides.net().lent() == 0);
      for (const auto& bucket : buckets) {
        for (const Started& started : bucket) {
          REQUIRE(started.done());
          CHECK_FALSE(started.what[0]->pending());
          if (started.works[0]->status().ok()) continue;
          CHECK(started.message() == "rank 3 died");
          ++works;
        }
      }
    }
    for (int rank : sides.all()) CHECK(sides[rank].PoolIsFree());
  }
  CHECK(works > 100);
}

// --- the locked schedule -----------------------------------------------------------------------

TEST_CASE("executor: what not all have started is taken back as it was, and order goes on") {
  struct Case {
    const char* op;
    int size;
    bool lanes;
    int64_t count;
  };
  for (const auto& [op, size, lanes, count] :
       {Case{"sum", 3, false, 500}, Case{"sum", 3, false, 2000}, Case{"sum", 3, true, 2000},
        Case{"adasum", 3, false, 2000}, Case{"adasum", 3, true, 2000},
        Case{"adasum", 3, false, 200000},
        Case{"adasum:small=0", 4, true, 200000}, Case{"adasum:small=0", 3, true, 200000},
        Case{"adasum:small=0", 7, true, 200000}}) {
    INFO(op << " of " << count << " on " << size << " ranks" << (lanes ? ", lanes" : ""));
    Sides sides(lanes ? Topology::OneNode(size) : Apart(size), 1, lanes);
    const auto tensor = [op = op, size = size, count = count](uint64_t number) {
      return Make("t" + std::to_string(number), op, size, count);
    };
    const auto right = [sums = std::string(op) == "sum"](const Tensor& of, const Started& started) {
      const Values result = test::Decode(DataType::kFloat32, started.Result());
      return sums ? result == Sum(of) : IsAdasum(of, result);
    };
    const auto locked = [](uint64_t number) { return Locked{7, 99, number}; };
    std::vector<Started> one, later, again;
    for (int rank : sides.all()) {  // rank 0 starts seven, rank 1 two, and rank 2 one
      one.push_back(sides.Start(rank, {tensor(1)}, locked(1)));
      for (uint64_t number = 2; number <= (rank == 0 ? 7 : rank == 1 ? 2 : 1); ++number)
        later.push_back(sides.Start(rank, {tensor(number)}, locked(number)));
    }
    sides.Settle();
    for (const Started& started : one) {
      REQUIRE(started.done());
      CHECK(right(tensor(1), started));
    }
    for (const Started& started : later) CHECK_FALSE(started.done());
    for (int rank : sides.all()) {
      Entries back = sides.executor(rank).TakeBack(1);
      REQUIRE(back.size() == (rank == 0 ? 6 : rank == 1 ? 1 : 0));
      for (size_t i = 0; i < back.size(); ++i) {  // the last one first
        const Tensor was = tensor(back.size() + 1 - i);
        CHECK(back[i].request().name == was.request.name);
        CHECK(back[i].what->runs == 0);
        const Bytes before =
            test::Encode(DataType::kFloat32, was.values[static_cast<size_t>(rank)]);
        CHECK(std::equal(before.begin(), before.end(), back[i].input));
        CHECK(back[i].input == back[i].output);
      }
      CHECK(sides.executor(rank).idle());
    }
    const int words = lanes ? 0 : 2 * size;  // that the gates go on to listen for: two rounds of 3
    CHECK(sides.net().lent() == words);
    // What rank 0 has packed of others must not be taken for these, which it starts last.
    for (int rank = size - 1; rank >= 0; --rank) {
      again.push_back(sides.Start(rank, {tensor(9)}));
      again.push_back(sides.Start(rank, {tensor(2)}, Locked{8, 98, 2}));
      sides.Settle({rank});
    }
    sides.Settle();
    for (size_t i = 0; i < again.size(); ++i) {
      REQUIRE(again[i].done());
      CHECK(again[i].message() == "");
      CHECK(right(tensor(i % 2 == 0 ? 9 : 2), again[i]));
    }
  }
}

// --- any order ---------------------------------------------------------------------------------

struct Planned {
  std::vector<Tensor> tensors;
  std::vector<int> ranks;
};

Planned Plan(int size, int number, const std::vector<std::vector<int>>& sets,
             std::mt19937_64& random) {
  const auto below = [&](size_t end) { return static_cast<size_t>(random() % end); };
  constexpr const char* kOps[] = {"sum", "average", "max", "broadcast:root=0", "allgather"};
  const std::string op = kOps[below(std::size(kOps))];
  const DataType dtype = below(2) == 0 ? DataType::kFloat32 : DataType::kFloat64;
  const size_t set = below(sets.size());
  Planned planned{{}, sets[set]};
  const size_t most = op == "allgather" || op == "broadcast:root=0" ? 1 : 3;
  for (size_t i = 0; i <= below(most); ++i) {
    const auto count = static_cast<int64_t>(std::vector<size_t>{1, 17, 900, 5000}[below(4)]);
    Tensor tensor = Make(std::to_string(number) + "." + std::to_string(i), op, size, count, dtype);
    tensor.request.process_set = static_cast<int32_t>(set);
    tensor.output = op == "allgather" ? Tensor::kWorks
                    : below(2) == 0   ? Tensor::kInPlace
                                      : Tensor::kUsers;
    planned.tensors.push_back(std::move(tensor));
  }
  return planned;
}

std::vector<Values> Expected(const Planned& planned) {
  std::vector<Values> expected;
  for (const Tensor& tensor : planned.tensors) {
    std::vector<Values> inputs;
    for (int rank : planned.ranks) inputs.push_back(tensor.values[static_cast<size_t>(rank)]);
    const std::string& op = tensor.request.op;
    if (op == "broadcast:root=0") {
      expected.push_back(inputs[0]);
    } else if (op == "allgather") {
      expected.emplace_back();
      for (const Values& input : inputs)
        expected.back().insert(expected.back().end(), input.begin(), input.end());
    } else {
      expected.push_back(test::Reduced(
          op == "max" ? ReduceKind::kMax : ReduceKind::kSum, tensor.request.dtype, inputs, 1.0,
          op == "average" ? 1.0 / static_cast<double>(inputs.size()) : 1.0));
    }
  }
  return expected;
}

TEST_CASE("executor: all buckets end well, in whatever order ranks start and step") {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const auto topologies = test::TestTopologies();
    const Topology topology = topologies[random() % topologies.size()];
    const int size = topology.size();
    Sides sides(topology, seed, topology.nodes() == 1 && random() % 2 == 0);
    std::vector<std::vector<int>> sets{sides.all()};
    if (size > 2) {
      sets.push_back({0, size - 1});
      sets.push_back({0, 1});
      for (size_t set = 1; set < sets.size(); ++set)
        sides.AddSet(static_cast<int32_t>(set), sets[set]);
    }
    std::vector<Planned> plan;
    for (int number = 0; number < 12; ++number) plan.push_back(Plan(size, number, sets, random));
    // By rank: how far it is, and what it has started.
    std::vector<size_t> next(static_cast<size_t>(size));
    std::vector<std::vector<std::pair<size_t, Started>>> started(static_cast<size_t>(size));
    const auto ended = [&](int rank) {
      return next[static_cast<size_t>(rank)] == plan.size() && sides.executor(rank).idle();
    };
    for (int turn = 0; turn < 1'000'000; ++turn) {
      const int rank = static_cast<int>(random() % static_cast<uint64_t>(size));
      size_t& mine = next[static_cast<size_t>(rank)];
      if (random() % 4 > 0 || mine == plan.size()) {
        REQUIRE(sides.executor(rank).Advance(random() % 8 == 0).ok());
      } else {
        const std::vector<int>& ranks = plan[mine].ranks;
        if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end())
          started[static_cast<size_t>(rank)].emplace_back(mine,
                                                          sides.Start(rank, plan[mine].tensors));
        ++mine;
      }
      if (std::all_of(sides.all().begin(), sides.all().end(), ended)) break;
    }
    sides.RequireIdle();
    for (const auto& of_rank : started) {
      for (const auto& [number, bucket] : of_rank) {
        const std::vector<Values> expected = Expected(plan[number]);
        for (size_t i = 0; i < expected.size(); ++i) {
          const DataType dtype = bucket.what[i]->request.dtype;
          INFO("bucket " << number << ", " << bucket.what[i]->request.op);
          REQUIRE(bucket.done());
          REQUIRE(bucket.message(i) == "");
          REQUIRE(test::Near(dtype, test::Decode(dtype, bucket.Result(i)), expected[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace horon
