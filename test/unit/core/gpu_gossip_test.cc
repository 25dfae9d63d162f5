// Gossip and neighbor_allreduce of GPU tensors on the GPUs: what the host's ops give, on every
// layout, round after round. No GPU complains about the order of its work.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "test/support/catch.h"
#include "test/support/gpu_world.h"

namespace horon {
namespace {

using test::Bytes;
using test::GpuRank;
using test::GpuWorld;
using test::kFloats;
using test::LayoutOf;
using test::Values;
using Layout = test::GpuLayout;

constexpr int64_t kCounts[] = {1, 0, 17, 5000};

Request OnHost(Request request) {
  request.name = "host." + request.name;
  request.device = {};
  return request;
}

// Makes of a request what each call says of its own, if the op wants it.
using Fill = std::function<void(Request&, int64_t count)>;
void Nothing(Request&, int64_t) {}

// The participant hears the one before it, and, if the tensor has an odd number of elements, the
// one after it, each with weights of its own. Of two they are the same one.
void HearNeighbors(Request& request, int64_t count, int me, int of) {
  std::vector<int64_t> from, to;
  const auto add = [me](std::vector<int64_t>& list, int rank) {
    if (rank != me && std::find(list.begin(), list.end(), rank) == list.end()) list.push_back(rank);
  };
  const int before = (me + of - 1) % of, after = (me + 1) % of;
  add(from, before);
  add(to, after);
  if (count % 2 == 1) {
    add(from, after);
    add(to, before);
  }
  request.splits = {me, static_cast<int64_t>(from.size())};
  request.splits.insert(request.splits.end(), from.begin(), from.end());
  request.splits.insert(request.splits.end(), to.begin(), to.end());
  request.weights = {0.5};
  for (const int64_t source : from)
    request.weights.push_back(0.25 + 0.125 * static_cast<double>(source));
  for (const int64_t other : to)
    request.weights.push_back(me % 2 == 0 ? 1.0 : 0.5 + 0.0625 * static_cast<double>(other));
}

// Some rounds of tensors that share buckets, on the GPU and on the host.
void Compare(GpuWorld& world, GpuRank& rank, const std::string& op, DataType dtype,
             const Fill& fill = Nothing) {
  const int me = rank.me().rank();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Work>> works;
    std::vector<std::byte*> tensors;
    std::vector<Request> requests;
    for (const int64_t count : kCounts) {
      tensors.push_back(rank.Put(test::Encode(dtype, test::Fractions(me + round, count))));
      requests.push_back(
          GpuRank::Of(op + std::string(NameOf(dtype)) + std::to_string(count), op, dtype, {count}));
      requests.back().prescale = 0.5;
      requests.back().postscale = 2.0;
      fill(requests.back(), count);
      auto work = rank.Submit(requests.back(), tensors.back(), tensors.back());
      world.Expect(work.ok(), work.status().message());
      if (!work.ok()) return;
      works.push_back(std::move(work).value());
    }
    for (size_t i = 0; i < works.size(); ++i) {
      const Status status = rank.Synchronize(*works[i]);
      world.Expect(status.ok(), status.message());
      const Values result = test::Decode(dtype, rank.Get(tensors[i], kCounts[i] * SizeOf(dtype)));
      Bytes host = test::Encode(dtype, test::Fractions(me + round, kCounts[i]));
      world.Expect(rank.me().Run(OnHost(requests[i]), host.data(), host.data()).ok(), op);
      world.Expect(test::Near(dtype, result, test::Decode(dtype, host)),
                   op + " of " + std::string(NameOf(dtype)) + " in round " + std::to_string(round));
    }
  }
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts = {
      LayoutOf(2, 0, "gpu.buckets.group"),    LayoutOf(3, 0, "gpu.buckets.group"),
      LayoutOf(4, 0, "gpu.buckets.group"),    LayoutOf(3, 1, "gpu.buckets.nodes"),
      LayoutOf(4, 2, "gpu.buckets.nodes"),    LayoutOf(6, 3, "gpu.buckets.nodes"),
      LayoutOf(4, 2, "gpu.exchanges.direct"), LayoutOf(4, 2, "gpu.buckets.nodes")};
  layouts[6].direct = {-1};
  layouts[7].functions = true;
  return layouts;
}

// On each layout, on the GPUs all along.
void OnLayouts(const std::function<void(GpuWorld&, GpuRank&, const Layout&)>& body) {
  for (const Layout& layout : Layouts()) {
    INFO(layout.size << " ranks, " << layout.local_size << " a node, " << layout.way);
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      body(world, rank, layout);
      auto& counters = rank.me().runtime().counters();
      world.Expect(counters[layout.way].value() > 0, std::string("not this way: ") + layout.way);
      world.Expect(counters["gpu.buckets.host"].value() == 0, "some went through the host");
    });
    world.Check();
  }
}

TEST_CASE("gossip on GPUs is gossip on the host, on every layout", "[gpu][gossip]") {
  OnLayouts([](GpuWorld& world, GpuRank& rank, const Layout&) {
    for (const char* op : {"gossip:graph=ring", "gossip:graph=one_peer_exponential"}) {
      for (const DataType dtype : kFloats) Compare(world, rank, op, dtype);
    }
  });
}

TEST_CASE("several rounds a call on GPUs are those on the host", "[gpu][gossip]") {
  OnLayouts([](GpuWorld& world, GpuRank& rank, const Layout&) {
    for (const char* rounds : {"0", "3"})
      Compare(world, rank, std::string("gossip:graph=one_peer_exponential,rounds=") + rounds,
              DataType::kFloat32);
  });
}

TEST_CASE("gossip between nodes on GPUs is that on the host", "[gpu][gossip]") {
  OnLayouts([](GpuWorld& world, GpuRank& rank, const Layout&) {
    const std::string op = "gossip:graph=ring,hierarchical=1";
    for (const DataType dtype : kFloats) Compare(world, rank, op, dtype);
    Compare(world, rank, op + ",inside=sum", DataType::kFloat32);
    Compare(world, rank, op + ",rounds=2", DataType::kFloat32);
  });
}

TEST_CASE("neighbor_allreduce on GPUs is that on the host, whoever hears whom", "[gpu][gossip]") {
  OnLayouts([](GpuWorld& world, GpuRank& rank, const Layout& layout) {
    const int me = rank.me().rank(),
              width = layout.local_size > 0 ? layout.local_size : layout.size;
    for (const DataType dtype : kFloats) {
      Compare(world, rank, "neighbor_allreduce", dtype, [&](Request& request, int64_t count) {
        HearNeighbors(request, count, me, layout.size);
      });
    }
    Compare(world, rank, "neighbor_allreduce:hierarchical=1", DataType::kFloat32,
            [&](Request& request, int64_t count) {
              HearNeighbors(request, count, me / width, layout.size / width);
            });
  });
}

TEST_CASE("neighbor_allreduce counts what it sends to whom on GPUs, too", "[gpu][gossip]") {
  GpuWorld world(LayoutOf(3, 0, "gpu.buckets.group"));
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    Compare(world, rank, "neighbor_allreduce", DataType::kFloat32,
            [&](Request& request, int64_t count) { HearNeighbors(request, count, me, 3); });
    auto& counters = rank.me().runtime().counters();
    const auto to = [&](int other) {
      return counters["gossip.bytes.to." + std::to_string(other)].value();
    };
    // Three rounds, on the GPU and on the host: all go to the next rank, the odd ones to both.
    world.Expect(to((me + 1) % 3) >= 2 * 3 * 4 * (1 + 17 + 5000), "too few bytes to the next rank");
    world.Expect(to((me + 2) % 3) >= 2 * 3 * 4 * (1 + 17), "too few bytes to the one before");
    world.Expect(to((me + 2) % 3) < 3 * 4 * 5000, "too many bytes to the one before");
  });
  world.Check();
}

TEST_CASE("gossip between nodes that one group spans goes through the host", "[gpu][gossip]") {
  GpuWorld world(LayoutOf(4, 2, "", true));
  world.Run([&](GpuRank& rank) {
    Compare(world, rank, "gossip:graph=ring,hierarchical=1", DataType::kFloat32);
    auto& counters = rank.me().runtime().counters();
    world.Expect(counters["gpu.buckets.host"].value() > 0, "not so");
    world.Expect(counters["gpu.buckets.group"].value() == 0, "some did not");
  });
  world.Check();
}

TEST_CASE("gossip on GPUs cuts large buckets into slices", "[gpu][gossip]") {
  test::GpuLayout layout = LayoutOf(3, 0, "");
  layout.configure_rank = [](int, Config& config) { config.fusion_bytes = 1 << 20; };
  GpuWorld world(layout);
  constexpr int64_t kCount = 5'000'001;  // 20 MB: three slices
  world.Run([&](GpuRank& rank) {
    const int64_t before = rank.gpu().taken();
    Values mine;
    for (int64_t i = 0; i < kCount; ++i)
      mine.push_back(static_cast<double>((i + 3 * rank.me().rank()) % 1000));
    std::byte* const tensor = rank.Put(test::Encode(DataType::kFloat32, mine));
    const auto work =
        rank.Submit(GpuRank::Of("w", "gossip:graph=ring", DataType::kFloat32, {kCount}), tensor,
                    tensor)
            .value();
    world.Expect(rank.Synchronize(*work).ok(), "synchronized");
    const Values mean = test::Decode(DataType::kFloat32, rank.Get(tensor, kCount * 4));
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double sum = static_cast<double>(i % 1000 + (i + 3) % 1000 + (i + 6) % 1000);
      wrong += std::fabs(mean[static_cast<size_t>(i)] - sum / 3) > 1e-3;
    }
    world.Expect(wrong == 0, std::to_string(wrong) + " elements are wrong");
    // The tensor, and a block that takes it with 16 MiB for both neighbors.
    const int64_t taken = rank.gpu().taken() - before;
    world.Expect(taken <= kCount * 4 + 256 + (36 << 20), std::to_string(taken) + " bytes taken");
  });
  world.Check();
}

TEST_CASE("slices are equally long where ranks hear differently many", "[gpu][gossip]") {
  test::GpuLayout layout = LayoutOf(5, 0, "");
  layout.configure_rank = [](int, Config& config) { config.fusion_bytes = 1 << 20; };
  GpuWorld world(layout);
  constexpr int64_t kCount = 2'500'001;  // 10 MB: slices of 4 MiB, as the centre hears four
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    const int64_t before = rank.gpu().taken();
    const Values mine(kCount, me);
    std::byte* const tensor = rank.Put(test::Encode(DataType::kFloat32, mine));
    const Request request =
        GpuRank::Of("w", "gossip:graph=star,mixing=uniform", DataType::kFloat32, {kCount});
    const auto work = rank.Submit(request, tensor, tensor).value();
    world.Expect(rank.Synchronize(*work).ok(), "synchronized");
    const Values mixed = test::Decode(DataType::kFloat32, rank.Get(tensor, kCount * 4));
    const double mean = me == 0 ? 2 : me / 2.0;
    const auto wrong = std::count_if(mixed.begin(), mixed.end(),
                                     [&](double v) { return std::fabs(v - mean) > 1e-5; });
    world.Expect(wrong == 0, std::to_string(wrong) + " elements are wrong");
    world.Expect(rank.gpu().taken() - before <= kCount * 4 + (28 << 20), "much room");
  });
  world.Check();
}

}  // namespace
}  // namespace horon
