// Gossip of GPU tensors on the GPUs: what the host's op gives, on every layout, round after round.
// No GPU complains about the order of its work.
#include <cmath>
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

// Some rounds of tensors that share buckets, on the GPU and on the host.
void Compare(GpuWorld& world, GpuRank& rank, const std::string& op, DataType dtype) {
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

TEST_CASE("gossip on GPUs is gossip on the host, on every layout", "[gpu][gossip]") {
  for (const Layout& layout :
       {LayoutOf(2, 0, "gpu.buckets.group"), LayoutOf(3, 0, "gpu.buckets.group"),
        LayoutOf(4, 0, "gpu.buckets.group"), LayoutOf(3, 1, "gpu.buckets.nodes"),
        LayoutOf(4, 2, "gpu.buckets.nodes"), LayoutOf(6, 3, "gpu.buckets.nodes")}) {
    INFO(layout.size << " ranks, " << layout.local_size << " a node");
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      for (const char* op : {"gossip:graph=ring", "gossip:graph=one_peer_exponential"}) {
        for (const DataType dtype : kFloats) Compare(world, rank, op, dtype);
      }
      auto& counters = rank.me().runtime().counters();
      world.Expect(counters[layout.way].value() > 0, std::string("not this way: ") + layout.way);
      world.Expect(counters["gpu.buckets.host"].value() == 0, "some went through the host");
    });
    world.Check();
  }
}

TEST_CASE("gossip on GPUs cuts large buckets into slices", "[gpu][gossip]") {
  GpuWorld world(LayoutOf(3, 0, ""));
  constexpr int64_t kCount = 5'000'001;  // 20 MB: three slices
  world.Run([&](GpuRank& rank) {
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
  });
  world.Check();
}

}  // namespace
}  // namespace horon
