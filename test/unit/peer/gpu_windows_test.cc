// Windows and rounds of tensors on a GPU: the values that tensors of the host get, and no thread
// that waits for the device. No GPU complains about the order of its work.
#include <algorithm>

#include "runtime/c_rounds.h"
#include "runtime/c_window.h"
#include "test/support/gpu_world.h"
#include "test/support/round_rank.h"
#include "test/support/window_rank.h"

namespace horon {
namespace {

using test::Bytes;
using test::Counting;
using test::GpuRank;
using test::GpuWorld;
using test::LayoutOf;
using test::LocalSize;
using test::Rank;
using test::Ranks;
using test::Total;
using test::WindowRank;

constexpr int64_t kCount = 70'001;  // several pieces of a message
constexpr Device kGpu{DeviceKind::kCuda, 0};

// A window whose tensor a kernel of the rank's stream fills.
class OnGpu {
 public:
  OnGpu(GpuRank& rank, WindowShape shape, const Bytes& begin, bool zero = true)
      : rank_(rank), count_(CountOf(shape.shape)), tensor(rank.Put(begin)) {
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
  Bytes values() { return rank_.Get(tensor, count_ * 4); }
  Status Free() { return FreeWindow(rank_.me().runtime(), window); }

 private:
  GpuRank& rank_;
  int64_t count_;

 public:
  std::byte* tensor;
  std::shared_ptr<Window> window;
  Status status;
};

WindowShape ShapeOf(const std::string& name, std::vector<int> in, std::vector<int> out) {
  WindowShape shape;
  shape.name = name;
  shape.shape = {kCount};
  shape.in = std::move(in);
  shape.out = std::move(out);
  return shape;
}

std::vector<float> Floats(const Bytes& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

TEST_CASE("a window on a GPU does what one on the host does", "[gpu]") {
  GpuWorld world(LayoutOf(4, LocalSize(), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const int to = (me.rank() + 1) % 4, from = (me.rank() + 3) % 4;
    const Bytes begin = Counting(me.rank(), kCount);
    OnGpu gpu(rank, ShapeOf("gpu", {from}, {to}), begin, false);
    WindowRank host(me, Floats(begin), {from}, {to}, false, "host");
    world.Expect(gpu.status.ok() && host.status.ok(), gpu.status.message());
    if (!gpu.status.ok() || !host.status.ok()) return;
    const auto both = [&](const std::string& what, OrderKind kind, const Ranks& ranks, double own,
                          bool reset = false) {
      Order order = gpu.Make(kind, ranks, own);
      order.reset = reset;
      gpu.Do(std::move(order));
      order = host.Make(kind, ranks, own);
      order.reset = reset;
      host.Do(std::move(order));
      world.Expect(gpu.status.ok() && host.status.ok(), what + ": " + gpu.status.message());
      world.Expect(Floats(gpu.values()) == host.values, what + " differs");
      Total(me, what, 0);  // what was given has arrived
    };
    both("the first update", OrderKind::kUpdate, {{from, 0.5}}, 0.5);
    both("put", OrderKind::kPut, {{to, 0.5}}, 0.5);
    both("accumulate", OrderKind::kAdd, {{to, 2.0}}, 1);
    both("update", OrderKind::kUpdate, {{from, 0.25}}, 0.75);
    both("get", OrderKind::kGet, {{from, 2.0}}, 1);
    both("collect", OrderKind::kUpdate, {{from, 1.0}}, 1, true);
    both("lock", OrderKind::kLock, {{me.rank(), 1.0}}, 1);
    both("unlock", OrderKind::kUnlock, {{me.rank(), 1.0}}, 1);

    gpu.Do(OrderKind::kPut, {{to, 1.0}});
    host.Put({{to, 1.0}});
    Total(me, "put again", 0);
    std::byte* const out = rank.Put(Counting(0, kCount));
    Order look = gpu.Make(OrderKind::kUpdate, {{from, 1.0}});
    look.output = out;
    gpu.Do(std::move(look));
    world.Expect(Floats(rank.Get(out, kCount * 4)) == host.Look(), "another output differs");
    world.Expect(Floats(gpu.values()) == host.values, "an update elsewhere changed the tensor");
    Total(me, "over", 0);
    world.Expect(gpu.Free().ok() && host.Free().ok(), "a window cannot be freed");
  });
  world.Check();
}

TEST_CASE("an order sees what the stream was given before it, and waits for no other rank's GPU",
          "[gpu]") {
  GpuWorld world(LayoutOf(2, LocalSize() == 1 ? 1 : 0, ""));
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
  const auto [graph, push_sum] = GENERATE(
      table<const char*, bool>({{"gossip:graph=ring", false},
                                {"gossip:graph=one_peer_exponential", true},
                                {"gossip:graph=star,mixing=push", true}}));
  GpuWorld world(LayoutOf(4, LocalSize(), ""));
  world.Run([&](GpuRank& rank) {
    Rank& me = rank.me();
    const test::Values begin = test::Fractions(me.rank(), kCount);
    test::RoundsOf of{.graph = graph, .push_sum = push_sum, .name = "host"};
    test::RoundRank host(me, of, begin);
    WindowShape shape = ShapeOf("gpu", {}, {});
    Status made = SetRounds(graph, 4, me.rank(), 0, push_sum, &shape);
    world.Expect(made.ok() && host.status.ok(), made.message());
    OnGpu gpu(rank, std::move(shape), host.bytes);
    world.Expect(gpu.status.ok(), gpu.status.message());
    if (!gpu.status.ok()) return;
    for (int round = 0; round < 4; ++round) {
      Order order = gpu.Make(OrderKind::kRound, {});
      if (round == 2) {  // another tensor comes first
        const Bytes other =
            test::Encode(DataType::kFloat32, test::Fractions(me.rank() + 9, kCount));
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

TEST_CASE("averages of pairs are for tensors of the host", "[gpu]") {
  GpuWorld world(LayoutOf(2, LocalSize() == 1 ? 1 : 0, ""));
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
