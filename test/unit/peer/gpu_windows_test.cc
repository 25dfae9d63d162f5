// Windows and rounds of tensors on a GPU: the values that tensors of the host get, and no thread
// that waits for the device. No GPU complains about the order of its work.
#include <algorithm>
#include <atomic>
#include <functional>

#include "runtime/c_rounds.h"
#include "runtime/c_window.h"
#include "test/support/gpu_world.h"
#include "test/support/round_rank.h"
#include "test/support/unreliable.h"
#include "test/support/window_rank.h"

namespace horon {
namespace {

using test::Bytes;
using test::Counting;
using test::GpuLayout;
using test::GpuRank;
using test::GpuWorld;
using test::LayoutOf;
using test::LocalSize;
using test::Muted;
using test::Rank;
using test::Ranks;
using test::Total;
using test::Way;
using test::WindowRank;

constexpr int64_t kCount = 70'001;  // several pieces of a message
constexpr Device kGpu{DeviceKind::kCuda, 0};

// A window whose tensor a kernel of the rank's stream fills.
class OnGpu {
 public:
  OnGpu(GpuRank& rank, WindowShape shape, const Bytes& begin, bool zero = true)
      : rank_(rank),
        bytes_(CountOf(shape.shape) * SizeOf(shape.dtype)),
        tensor(rank.Put(begin)) {
    status = rank.me().runtime().GpuOf(kGpu).status();
    if (!status.ok()) return;
    auto made =
        MakeWindow(rank.me().runtime(), std::move(shape), {tensor, kGpu, Recorded()}, zero);
    status = made.status();
    if (made.ok()) window = made.value();
  }

  SharedEvent Recorded() { return rank_.gpu().Record(&rank_.stream()).value(); }
  Order Make(OrderKind kind, Ranks ranks, double self_weight = 1) {
    Order order;
    order.kind = kind;
    order.window = window;
    order.ranks = std::move(ranks);
    order.self_weight = self_weight;
    order.ready = Recorded();
    return order;
  }
  Result<std::shared_ptr<Work>> Start(Order order) {
    return StartOrder(rank_.me().runtime(), std::move(order), true);
  }
  // Afterwards the rank's stream waits, as a framework's does.
  void Do(Order order) {
    auto work = Start(std::move(order));
    status = work.ok() ? rank_.Synchronize(*work.value()) : work.status();
  }
  void Do(OrderKind kind, Ranks ranks, double self_weight = 1) {
    Do(Make(kind, std::move(ranks), self_weight));
  }
  Bytes values() { return rank_.Get(tensor, bytes_); }
  Status Free() { return FreeWindow(rank_.me().runtime(), window); }

 private:
  GpuRank& rank_;
  int64_t bytes_;

 public:
  std::byte* tensor;
  std::shared_ptr<Window> window;
  Status status;
};

WindowShape ShapeOf(const std::string& name, std::vector<int> in, std::vector<int> out,
                    int64_t count = kCount) {
  WindowShape shape;
  shape.name = name;
  shape.shape = {count};
  shape.in = std::move(in);
  shape.out = std::move(out);
  return shape;
}

std::vector<float> Floats(const Bytes& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

TEST_CASE("a window on a GPU does what one on the host does", "[gpu]") {
  const int64_t count = GENERATE(as<int64_t>{}, kCount, 0);
  GpuWorld world(LayoutOf(4, LocalSize(), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const int to = (me.rank() + 1) % 4, from = (me.rank() + 3) % 4;
    const Bytes begin = Counting(me.rank(), count);
    OnGpu gpu(rank, ShapeOf("gpu", {from}, {to}, count), begin, false);
    WindowRank host(me, Floats(begin), {from}, {to}, false, "host");
    world.Expect(gpu.status.ok() && host.status.ok(), gpu.status.message());
    if (!gpu.status.ok() || !host.status.ok()) return;
    const auto both = [&](const std::string& what, OrderKind kind, const Ranks& ranks, double own,
                          const std::function<void(Order&)>& change = [](Order&) {}) {
      Order order = gpu.Make(kind, ranks, own);
      change(order);
      gpu.Do(std::move(order));
      order = host.Make(kind, ranks, own);
      change(order);
      host.Do(std::move(order));
      world.Expect(gpu.status.ok() && host.status.ok(), what + ": " + gpu.status.message());
      world.Expect(Floats(gpu.values()) == host.values, what + " differs");
      world.Expect(gpu.window->share == host.window->share, what + ": the weight differs");
      Total(me, what, 0);  // what was given has arrived
    };
    both("the first update", OrderKind::kUpdate, {{from, 0.5}}, 0.5);
    both("put", OrderKind::kPut, {{to, 0.5}}, 0.5);
    both("accumulate", OrderKind::kAdd, {{to, 2.0}}, 1);
    both("update", OrderKind::kUpdate, {{from, 0.25}}, 0.75);
    both("get", OrderKind::kGet, {{from, 2.0}}, 1);
    both("collect", OrderKind::kUpdate, {{from, 1.0}}, 1, [](Order& o) { o.reset = true; });
    both("accumulate with a mutex and weights", OrderKind::kAdd, {{to, 0.25}}, 0.75,
         [](Order& o) { o.with_mutex = o.carry = true; });
    both("collect with a mutex and weights", OrderKind::kUpdate, {{from, 1.0}}, 1,
         [](Order& o) { o.reset = o.with_mutex = o.carry = true; });
    both("lock", OrderKind::kLock, {{me.rank(), 1.0}}, 1);
    both("unlock", OrderKind::kUnlock, {{me.rank(), 1.0}}, 1);

    gpu.Do(OrderKind::kPut, {{to, 1.0}});
    host.Put({{to, 1.0}});
    Total(me, "put again", 0);
    std::byte* const out = rank.Put(Counting(0, count));
    Order look = gpu.Make(OrderKind::kUpdate, {{from, 1.0}});
    look.output = out;
    gpu.Do(std::move(look));
    world.Expect(Floats(rank.Get(out, count * 4)) == host.Look(), "another output differs");
    world.Expect(Floats(gpu.values()) == host.values, "an update elsewhere changed the tensor");
    Total(me, "over", 0);
    world.Expect(gpu.Free().ok() && host.Free().ok(), "a window cannot be freed");
  });
  world.Check();
}

TEST_CASE("an order sees what the stream was given before it, and waits for no other rank's GPU",
          "[gpu]") {
  GpuWorld world(LayoutOf(2, GENERATE(0, 1), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const int other = 1 - me.rank();
    OnGpu gpu(rank, ShapeOf("gpu", {other}, {other}), Counting(me.rank(), kCount));
    world.Expect(gpu.status.ok(), gpu.status.message());
    if (!gpu.status.ok()) return;
    if (me.rank() == 0) {  // its kernels are late: neither it nor the other one waits
      rank.stream().Hold();
      rank.stream().Enqueue("the user's kernel", {}, {{gpu.tensor, kCount * 4}},
                            [inside = rank.gpu().Inside(gpu.tensor)] {
                              const Bytes bytes = Counting(100, kCount);
                              std::memcpy(inside, bytes.data(), bytes.size());
                            });
      const auto put = gpu.Start(gpu.Make(OrderKind::kPut, {{1, 1.0}}, 0.5));
      const auto update = gpu.Start(gpu.Make(OrderKind::kUpdate, {{1, 1.0}}));
      Total(me, "while the device is busy", 0);
      world.Expect(put.ok() && !put.value()->done(), "a put went without its values");
      world.Expect(update.ok() && !update.value()->done(), "orders did not take turns");
      rank.stream().Release();
      for (const auto* work : {&put, &update}) {
        if (work->ok()) gpu.status = rank.Synchronize(*work->value());
        world.Expect(gpu.status.ok(), gpu.status.message());
      }
      const std::vector<float> values = Floats(gpu.values());
      world.Expect(values[0] == 50 + 1 && values[7] == 107 * 0.5f + 8, "the values are others");
    } else {
      gpu.Do(OrderKind::kPut, {{0, 1.0}});
      world.Expect(gpu.status.ok(), gpu.status.message());
      gpu.Do(OrderKind::kUpdate, {{0, 1.0}});
      world.Expect(Floats(gpu.values())[7] == 8, "there was something in an empty slot");
      Total(me, "while the device is busy", 0);
    }
    Total(me, "put", 0);
    if (me.rank() == 1) {
      gpu.Do(OrderKind::kUpdate, {{0, 1.0}});
      world.Expect(Floats(gpu.values())[7] == 8 + 107, "what was put is not there");
    }
    Total(me, "over", 0);
    world.Expect(gpu.Free().ok(), "the window cannot be freed");
  });
  world.Check();
}

TEST_CASE("rounds of tensors on GPUs have the bits of those on the host", "[gpu]") {
  const auto [graph, push_sum, dtype] = GENERATE(table<const char*, bool, DataType>(
      {{"gossip:graph=ring", false, DataType::kFloat32},
       {"gossip:graph=ring", false, DataType::kBFloat16},
       {"gossip:graph=one_peer_exponential", true, DataType::kFloat32},
       {"gossip:graph=star,mixing=push", true, DataType::kFloat16}}));
  GpuWorld world(LayoutOf(4, LocalSize(), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const test::Values begin = test::Fractions(me.rank(), kCount);
    test::RoundsOf of{.graph = graph, .push_sum = push_sum, .dtype = dtype, .name = "host"};
    test::RoundRank host(me, of, begin);
    WindowShape shape = ShapeOf("gpu", {}, {});
    shape.dtype = dtype;
    Status made = SetRounds(graph, 4, me.rank(), 0, push_sum, &shape);
    world.Expect(made.ok() && host.status.ok(), made.message());
    OnGpu gpu(rank, std::move(shape), host.bytes);
    world.Expect(gpu.status.ok(), gpu.status.message());
    if (!gpu.status.ok()) return;
    for (int round = 0; round < 4; ++round) {
      Order order = gpu.Make(OrderKind::kRound, {});
      if (round == 2) {  // another tensor comes first
        const Bytes other = test::Encode(dtype, test::Fractions(me.rank() + 9, kCount));
        std::copy(other.begin(), other.end(), host.bytes.begin());  // where they lie
        order.input = rank.Put(host.bytes);
        order.ready = gpu.Recorded();
      }
      gpu.Do(std::move(order));
      host.Mix();
      world.Expect(gpu.status.ok() && host.status.ok(), gpu.status.message());
      world.Expect(gpu.values() == host.bytes, "round " + std::to_string(round) + " differs");
      world.Expect(gpu.window->share == host.share(), "the push-sum weight differs");
    }
    world.Expect(gpu.Free().ok() && host.Free().ok(), "a window cannot be freed");
  });
  world.Check();
}

TEST_CASE("a rank without its GPU says so to all, and they can begin anew", "[gpu]") {
  GpuWorld world(LayoutOf(2, GENERATE(0, 1), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const std::vector<int> other = {1 - me.rank()};
    std::byte* const tensor = rank.Put(Counting(0, kCount));
    world.Expect(me.runtime().GpuOf(kGpu).ok(), "there is no GPU");
    WindowTensor given{tensor, kGpu, rank.gpu().Record(&rank.stream())};
    if (me.rank() == 0) given.ready = Status::Unsupported("no GPU here");
    const auto made = MakeWindow(me.runtime(), ShapeOf("w", other, other), given, true);
    world.Expect(!made.ok(), "a window without the values of a rank");
    if (me.rank() == 0)
      world.Expect(made.status().message() == "no GPU here", made.status().message());
    Total(me, "refused", 0);
    OnGpu again(rank, ShapeOf("w", other, other), Counting(0, kCount));
    world.Expect(again.status.ok(), again.status.message());
    if (again.status.ok()) world.Expect(again.Free().ok(), "the window cannot be freed");
  });
  world.Check();
}

TEST_CASE("what comes back from a lost rank reaches the tensor on the GPU", "[gpu]") {
  std::atomic<Way> ways[2] = {Way::kOpen, Way::kMute};  // rank 1 never says that it has it
  GpuLayout layout = LayoutOf(2, 1, "");
  layout.configure_rank = [](int, Config& c) { c.gossip_time = std::chrono::milliseconds{1000}; };
  layout.wrap = [&](int rank, std::unique_ptr<Transport> inner) {
    return std::make_unique<Muted>(std::move(inner), ways[rank]);
  };
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const std::vector<int> other = {1 - me.rank()};
    const Bytes begin = Counting(4, 3);
    OnGpu gpu(rank, ShapeOf("gpu", other, other, 3), begin);
    world.Expect(gpu.status.ok(), gpu.status.message());
    if (!gpu.status.ok()) return;
    if (me.rank() == 0) {
      gpu.Do(OrderKind::kAdd, {{1, 0.25}}, 0.75);
      world.Expect(gpu.status.ok(), gpu.status.message());
      world.Expect(Floats(gpu.values()) == std::vector<float>{3, 3.75, 4.5},
                   "what the other one may have is here too");
      ways[0] = ways[1] = Way::kBroken;
    }
    std::vector<float> values = {1};
    world.Expect(!me.Reduce("after", "sum", values).ok(), "a collective cannot go on");
    if (me.rank() != 0) return;
    gpu.Do(OrderKind::kPublish, {});
    world.Expect(gpu.status.ok(), gpu.status.message());
    world.Expect(gpu.values() == begin, "it did not come back");
  });
  world.Check();
}

TEST_CASE("orders that wait for the device, or for their turn, end with the job", "[gpu]") {
  GpuWorld world(LayoutOf(2, GENERATE(0, 1), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const int other = 1 - me.rank();
    OnGpu gpu(rank, ShapeOf("gpu", {other}, {other}), Counting(0, kCount));
    world.Expect(gpu.status.ok(), gpu.status.message());
    if (!gpu.status.ok()) return;
    Total(me, "made", 0);
    rank.stream().Hold();
    rank.Put(Counting(0, kCount));  // something that the device does not come to
    const auto reached = gpu.Start(gpu.Make(OrderKind::kPut, {{other, 1.0}}));
    const auto turn = gpu.Start(gpu.Make(OrderKind::kUpdate, {{other, 1.0}}));
    Total(me, "started", 0);
    world.Expect(reached.ok() && !reached.value()->done(), "a put went without its values");
    world.Expect(turn.ok() && !turn.value()->done(), "orders did not take turns");
    me.runtime().Shutdown();
    for (const auto* work : {&reached, &turn}) {
      if (!work->ok()) continue;
      world.Expect(work->value()->done(), "an order outlives the job");
      world.Expect(me.Wait(*work->value()).code() == Code::kAborted, "an order did not fail");
    }
    rank.stream().Release();
  });
  world.Check();
}

// The job goes on: of a window's orders no other rank waits for this device.
TEST_CASE("orders of a window whose device is lost end with its words", "[gpu]") {
  GpuWorld world(LayoutOf(2, GENERATE(0, 1), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const int other = 1 - me.rank();
    OnGpu gpu(rank, ShapeOf("gpu", {other}, {other}), Counting(0, kCount));
    world.Expect(gpu.status.ok(), gpu.status.message());
    if (!gpu.status.ok()) return;
    const bool lost = me.rank() == 1;
    const auto says_why = [&](const Status& status, const std::string& what) {
      world.Expect(status.code() == Code::kUnavailable && status.message() == "the GPU is lost",
                   what + ": " + status.message());
    };
    Total(me, "made", 0);
    if (lost) {
      Order late;
      late.kind = OrderKind::kPut;
      late.window = gpu.window;
      late.ranks = {{other, 1.0}};
      late.ready = gpu.Recorded();
      rank.stream().Hold();
      rank.Put(Counting(0, kCount));  // something that the device does not come to
      const auto reached = gpu.Start(gpu.Make(OrderKind::kPut, {{other, 1.0}})).value();
      const auto turn = gpu.Start(gpu.Make(OrderKind::kUpdate, {{other, 1.0}})).value();
      Total(me, "started", 0);
      world.Expect(!reached->done() && !turn->done(), "a put went without its values");
      rank.gpu().Lose(Status::Unavailable("the GPU is lost"));
      says_why(me.Wait(*reached), "a put under way");
      says_why(me.Wait(*turn), "an update behind it");
      gpu.Do(std::move(late));
      says_why(gpu.status, "afterwards");
    } else {
      Total(me, "started", 0);
    }
    Total(me, "lost", 0);
    if (!lost) {
      gpu.Do(OrderKind::kPut, {{1, 1.0}});
      world.Expect(gpu.status.ok(), gpu.status.message());
      gpu.Do(OrderKind::kUpdate, {{1, 1.0}});
      world.Expect(Floats(gpu.values())[7] == 7, "what was not put is there");
    }
    world.Expect(Total(me, "over", 1) == 2, "the job has ended");
    world.Expect(gpu.Free().ok(), "the window cannot be freed");
  });
  world.Check();
}

TEST_CASE("averages of pairs are for tensors of the host", "[gpu]") {
  GpuWorld world(LayoutOf(2, GENERATE(0, 1), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    if (me.rank() == 0) {
      OnGpu gpu(rank, ShapeOf("w", {1}, {1}), Counting(0, kCount));
      for (const OrderKind kind : {OrderKind::kPair, OrderKind::kStep}) {
        gpu.Do(kind, {{1, 0.5}});
        world.Expect(gpu.status.code() == Code::kUnsupported, gpu.status.message());
      }
      Total(me, "asked", 0);
      world.Expect(Floats(gpu.values())[7] == 7, "an average of a pair changed the tensor");
      world.Expect(gpu.Free().ok(), "the window cannot be freed");
    } else {
      WindowRank host(me, std::vector<float>(kCount, 1), {0}, {0});
      host.Do(host.Make(OrderKind::kPair, {{0, 0.5}}));
      world.Expect(host.status.code() == Code::kInvalidArgument, "a window on a GPU answered");
      Total(me, "asked", 0);
      world.Expect(host.Free().ok(), "the window cannot be freed");
    }
  });
  world.Check();
}

}  // namespace
}  // namespace horon
