// Adasum of GPU tensors on the GPUs: the reference tree, and the host's op, on every layout; nobody
// waits for the device where a group joins all ranks. Each test ends with no complaint of any GPU
// about the order of its work.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

#include "test/support/catch.h"
#include "test/support/gpu_world.h"
#include "test/unit/ops/adasum_reference.h"

namespace horon {
namespace {

using test::Bytes;
using test::Counting;
using test::GpuRank;
using test::GpuWorld;
using test::kFloats;
using test::LayoutOf;
using test::Values;
using Layout = test::GpuLayout;

constexpr int64_t kCounts[] = {1, 0, 17, 5000, 3, 70'001};
const char* const kOps[] = {"adasum", "adasum:local=average", "adasum:local=sum",
                            "adasum:zero=mean"};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (const int size : {2, 3, 4, 5, 8}) layouts.push_back(LayoutOf(size, 0, "gpu.buckets.group"));
  for (const auto& [size, local] : std::vector<std::pair<int, int>>{
           {2, 1}, {3, 1}, {4, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {9, 3}})
    layouts.push_back(LayoutOf(size, local, "gpu.buckets.nodes"));
  for (const auto& [size, local] : std::vector<std::pair<int, int>>{{2, 1}, {4, 2}, {6, 2}}) {
    layouts.push_back(LayoutOf(size, local, "gpu.exchanges.direct"));
    layouts.back().direct = {-1};
  }
  return layouts;
}

std::string Describe(const Layout& layout) {
  return std::to_string(layout.size) + " ranks, " + std::to_string(layout.local_size) +
         " a node, " + layout.way + (layout.between ? " between nodes" : "");
}

struct Tensors {
  std::vector<std::byte*> in, out;
  std::vector<std::shared_ptr<Work>> works;
};

// A gradient of each count; some are zero on the first ranks.
Bytes GradientOf(DataType dtype, int rank, int64_t count) {
  if (count == 17 && rank < 1) return Bytes(static_cast<size_t>(count * SizeOf(dtype)));
  return test::Encode(dtype, test::Gradient(dtype, rank, count, static_cast<unsigned>(count)));
}

// All counts of one op and type on the GPU, and, on the host, what they are compared with.
void Compare(GpuWorld& world, GpuRank& rank, const std::string& op, DataType dtype, int size) {
  const int me = rank.me().rank();
  Tensors tensors;
  for (const int64_t count : kCounts) {
    tensors.in.push_back(rank.Put(GradientOf(dtype, me, count)));
    tensors.out.push_back(count == 17 ? tensors.in.back() : rank.Put(GradientOf(dtype, me, count)));
    Request request =
        GpuRank::Of(op + std::string(NameOf(dtype)) + std::to_string(count), op, dtype, {count});
    request.prescale = 0.5;
    request.postscale = 2.0;
    tensors.works.push_back(rank.Submit(request, tensors.in.back(), tensors.out.back()).value());
  }
  for (size_t i = 0; i < tensors.works.size(); ++i) {
    const int64_t count = kCounts[i];
    const Status status = rank.Synchronize(*tensors.works[i]);
    world.Expect(status.ok(), status.message());
    const Values result = test::Decode(dtype, rank.Get(tensors.out[i], count * SizeOf(dtype)));
    Bytes on_host = GradientOf(dtype, me, count);
    Request request;
    request.name = "host." + op + std::string(NameOf(dtype)) + std::to_string(count);
    request.op = op;
    request.dtype = dtype;
    request.shape = {count};
    request.prescale = 0.5;
    request.postscale = 2.0;
    world.Expect(rank.me().Run(request, on_host.data(), on_host.data()).ok(), request.name);
    std::vector<Values> inputs;
    for (int r = 0; r < size; ++r)
      inputs.push_back(test::Decode(dtype, GradientOf(dtype, r, count)));
    const double gap = test::GapOf(result, test::Decode(dtype, on_host), inputs);
    world.Expect(gap <= 4 * test::AdasumTolerance(dtype, size),
                 request.name + " is off by " + std::to_string(gap));
  }
}

TEST_CASE("adasum on GPUs is adasum on the host, on every layout", "[gpu][adasum]") {
  for (const Layout& layout : Layouts()) {
    INFO(Describe(layout));
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      for (const char* op : kOps) Compare(world, rank, op, DataType::kFloat32, layout.size);
      for (const DataType dtype : kFloats) {
        if (dtype != DataType::kFloat32) Compare(world, rank, "adasum", dtype, layout.size);
      }
      auto& counters = rank.me().runtime().counters();
      world.Expect(counters[layout.way].value() > 0, std::string("not this way: ") + layout.way);
      world.Expect(counters["gpu.buckets.host"].value() == 0, "some went through the host");
    });
    world.Check();
  }
}

// One bucket of all counts: what one rank gets, and whether all get the same.
TEST_CASE("adasum on GPUs is the reference tree, with the same bits on all ranks",
          "[gpu][adasum]") {
  for (const Layout& layout :
       {LayoutOf(4, 0, ""), LayoutOf(3, 0, ""), LayoutOf(4, 2, ""), LayoutOf(4, 2, "", true)}) {
    INFO(Describe(layout));
    constexpr DataType kType = DataType::kFloat32;
    constexpr int64_t kCount = 12'345;
    std::vector<Values> inputs;
    std::vector<test::Summand> leaves;
    for (int r = 0; r < layout.size; ++r) {
      inputs.push_back(test::Decode(kType, GradientOf(kType, r, kCount)));
      leaves.push_back({inputs.back(), 1});
    }
    std::vector<Bytes> results(static_cast<size_t>(layout.size));
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      const int me = rank.me().rank();
      std::byte* const tensor = rank.Put(GradientOf(kType, me, kCount));
      const auto work =
          rank.Submit(GpuRank::Of("w", "adasum", kType, {kCount}), tensor, tensor).value();
      world.Expect(rank.Synchronize(*work).ok(), "synchronized");
      results[static_cast<size_t>(me)] = rank.Get(tensor, kCount * SizeOf(kType));
    });
    world.Check();
    for (const Bytes& result : results) REQUIRE(result == results[0]);
    const Values result = test::Decode(kType, results[0]);
    const double gap = test::GapOf(result, test::AdasumTree(leaves).value, inputs);
    REQUIRE(gap <= 2 * test::AdasumTolerance(kType, layout.size));
  }
}

TEST_CASE("A15: fused tensors have the bits of lone ones on GPUs", "[gpu][adasum]") {
  for (const Layout& layout : Layouts()) {
    INFO(Describe(layout));
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      const int me = rank.me().rank();
      for (const DataType dtype : kFloats) {
        for (const std::string op : {"adasum", "adasum:zero=mean"}) {
          const std::string name = op + std::string(NameOf(dtype));
          std::vector<std::byte*> fused;
          const std::vector<int64_t> counts(std::begin(kCounts), std::end(kCounts));
          for (const int64_t count : counts)
            fused.push_back(rank.Put(GradientOf(dtype, me, count)));
          const auto all = rank.SubmitTogether(name, op, fused, counts, dtype).value();
          world.Expect(rank.Synchronize(*all).ok(), name + " of all");
          for (size_t i = 0; i < counts.size(); ++i) {
            std::byte* const lone = rank.Put(GradientOf(dtype, me, counts[i]));
            const auto work = rank.Submit(GpuRank::Of(name + "." + std::to_string(i), op, dtype,
                                                      {counts[i]}),
                                          lone, lone)
                                  .value();
            world.Expect(rank.Synchronize(*work).ok(), name + " of one");
            const int64_t bytes = counts[i] * SizeOf(dtype);
            world.Expect(rank.Get(fused[i], bytes) == rank.Get(lone, bytes),
                         name + ": other bits in a bucket, tensor " + std::to_string(i));
          }
        }
      }
    });
    world.Check();
  }
}

TEST_CASE("an overflow on one rank's GPU is a NaN on all of them, in its tensor alone",
          "[gpu][adasum]") {
  for (const Layout& layout : {LayoutOf(3, 0, ""), LayoutOf(4, 2, "")}) {
    for (const char* op : {kOps[0], kOps[1]}) {
      if (layout.local_size == 0 && op != kOps[0]) continue;  // a plain average
      INFO(Describe(layout) << ", " << op);
      GpuWorld world(layout);
      world.Run([&](GpuRank& rank) {
        constexpr DataType kType = DataType::kFloat32;
        std::vector<std::byte*> tensors;
        std::vector<std::shared_ptr<Work>> works;
        for (const char* name : {"good", "bad", "also good"}) {
          Values values(1000, 1.0);
          if (name == std::string("bad") && rank.me().rank() == 1) values[10] = INFINITY;
          tensors.push_back(rank.Put(test::Encode(kType, values)));
          works.push_back(rank.Submit(GpuRank::Of(name, op, kType, {1000}), tensors.back(),
                                      tensors.back())
                              .value());
        }
        for (size_t i = 0; i < works.size(); ++i) {
          world.Expect(rank.Synchronize(*works[i]).ok(), "synchronized");
          const Values result = test::Decode(kType, rank.Get(tensors[i], 4000));
          const auto right = [&](double x) {
            return i == 1 ? std::isnan(x) : std::fabs(x - 1) < 1e-5;
          };
          world.Expect(std::all_of(result.begin(), result.end(), right), "of " + std::to_string(i));
        }
        auto& counters = rank.me().runtime().counters();
        world.Expect(counters["gpu.buckets.host"].value() == 0, "some went through the host");
      });
      world.Check();
    }
  }
}

TEST_CASE("a model's tensors are one bucket of adasum on GPUs, but along rings", "[gpu][adasum]") {
  const auto buckets_of = [](const char* op, const char* way, int64_t expected) {
    GpuWorld world(LayoutOf(2, 0, way));
    world.Run([&](GpuRank& rank) {
      constexpr int64_t kCount = 1 << 18;  // each as large as a bucket of the host's
      std::vector<std::byte*> tensors;
      for (int i = 0; i < 3; ++i) tensors.push_back(rank.Put(Counting(rank.me().rank(), kCount)));
      const auto work = rank.SubmitTogether("model", op, tensors, kCount).value();
      world.Expect(rank.Synchronize(*work).ok(), op);
      rank.Get(tensors[2], 4);
      world.Expect(rank.me().runtime().counters()[way].value() == expected, op);
    });
    world.Check();
  };
  buckets_of("adasum", "gpu.buckets.group", 1);
  buckets_of("adasum:algo=ring", "gpu.buckets.host", 3);
}

TEST_CASE("a full bucket of adasum fits into a block of the threshold, also with a fold",
          "[gpu][adasum]") {
  test::GpuLayout layout = LayoutOf(3, 0, "");
  constexpr int64_t kFused = 1 << 20, kCount = kFused / 16 / 4;
  layout.configure_rank = [](int, Config& config) { config.fusion_bytes = kFused; };
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) {
    std::vector<std::byte*> tensors;
    for (int i = 0; i < 14; ++i) tensors.push_back(rank.Put(Counting(1, kCount)));
    const int64_t before = rank.gpu().taken();
    const auto work = rank.SubmitTogether("model", "adasum", tensors, kCount).value();
    world.Expect(rank.Synchronize(*work).ok(), "adasum");
    const Values mean = test::Decode(DataType::kFloat32, rank.Get(tensors[13], 8));
    world.Expect(test::RelativeGap(mean, {1, 2}) < 1e-6, "equal gradients are averaged");
    world.Expect(rank.me().runtime().counters()["gpu.buckets.group"].value() == 2, "two buckets");
    world.Expect(rank.gpu().taken() - before == kFused, "one block");
  });
  world.Check();
}

TEST_CASE("nobody waits for the device in adasum inside a group", "[gpu][adasum]") {
  GpuWorld world(LayoutOf(3, 0, ""));
  world.Run([&](GpuRank& rank) {
    rank.stream().Hold();  // the input is not there yet
    std::byte* const tensor = rank.Put(test::Counting(1, 64));
    const auto work =
        rank.Submit(GpuRank::Of("w", "adasum", DataType::kFloat32, {64}), tensor, tensor).value();
    const Status finished = rank.Synchronize(*work);
    const bool settled = work->Settled().value();
    rank.stream().Release();
    const Values mean = test::Decode(DataType::kFloat32, rank.Get(tensor, 256));
    world.Expect(finished.ok(), finished.message());
    world.Expect(!settled, "somebody has waited");
    const Values expected = test::Decode(DataType::kFloat32, test::Counting(1, 64));
    world.Expect(test::RelativeGap(mean, expected) < 1e-6, "equal gradients are averaged");
  });
  world.Check();
}

TEST_CASE("between nodes adasum's large halves travel in chunks", "[gpu][adasum]") {
  GpuWorld world(LayoutOf(2, 1, "gpu.buckets.nodes"));
  constexpr int64_t kCount = 5'000'000;  // halves of 10 MB
  world.Run([&](GpuRank& rank) {
    // Orthogonal: their sum.
    Values mine(static_cast<size_t>(kCount));
    for (int64_t i = rank.me().rank(); i < kCount; i += 2)
      mine[static_cast<size_t>(i)] = static_cast<double>(i % 1000);
    std::byte* const tensor = rank.Put(test::Encode(DataType::kFloat32, mine));
    const auto work =
        rank.Submit(GpuRank::Of("w", "adasum", DataType::kFloat32, {kCount}), tensor, tensor)
            .value();
    world.Expect(rank.Synchronize(*work).ok(), "synchronized");
    const Values sum = test::Decode(DataType::kFloat32, rank.Get(tensor, kCount * 4));
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; ++i)
      wrong += sum[static_cast<size_t>(i)] != static_cast<double>(i % 1000);
    world.Expect(wrong == 0, std::to_string(wrong) + " elements are wrong");
  });
  world.Check();
}

TEST_CASE("what adasum does not do on GPUs goes through the host", "[gpu][adasum]") {
  struct Case {
    Layout layout;
    const char* op;
  };
  for (const Case& c : {Case{LayoutOf(3, 0, ""), "adasum:algo=ring"},
                        Case{LayoutOf(4, 2, "", true), "adasum:local=average"}}) {
    INFO(c.op);
    GpuWorld world(c.layout);
    world.Run([&](GpuRank& rank) {
      std::byte* const tensor = rank.Put(test::Counting(1, 8));
      const auto work =
          rank.Submit(GpuRank::Of("w", c.op, DataType::kFloat32, {8}), tensor, tensor).value();
      world.Expect(rank.Synchronize(*work).ok(), "synchronized");
      const Values mean = test::Decode(DataType::kFloat32, rank.Get(tensor, 32));
      const Values expected = test::Decode(DataType::kFloat32, test::Counting(1, 8));
      world.Expect(test::RelativeGap(mean, expected) < 1e-6, "equal gradients are averaged");
      world.Expect(rank.me().runtime().counters()["gpu.buckets.host"].value() == 1, "not so");
    });
    world.Check();
  }
}

// A model that lies partly on the GPU: every step submits tensors of both.
TEST_CASE("adasum of a model's tensors on the host and on a GPU, side by side", "[gpu][adasum]") {
  constexpr DataType kType = DataType::kFloat32;
  for (const Layout& layout : {LayoutOf(2, 0, ""), LayoutOf(3, 0, ""), LayoutOf(4, 2, "")}) {
    INFO(Describe(layout));
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      const int me = rank.me().rank();
      for (int step = 0; step < 6; ++step) {
        std::vector<Bytes> on_host(std::size(kCounts));
        std::vector<std::byte*> on_gpu(std::size(kCounts));
        std::vector<std::shared_ptr<Work>> works;
        for (size_t i = 0; i < std::size(kCounts); ++i) {
          Request request = GpuRank::Of("w" + std::to_string(i), "adasum", kType, {kCounts[i]});
          const Bytes gradient = GradientOf(kType, me, kCounts[i]);
          if (i % 2 == 0) {
            on_gpu[i] = rank.Put(gradient);
            works.push_back(rank.Submit(request, on_gpu[i], on_gpu[i]).value());
          } else {
            request.device = {};
            on_host[i] = gradient;
            works.push_back(
                rank.me().Submit(request, on_host[i].data(), on_host[i].data()).value());
          }
        }
        for (size_t i = 0; i < works.size(); ++i) {
          const Status status = rank.Synchronize(*works[i]);
          world.Expect(status.ok(), status.message());
          const int64_t bytes = kCounts[i] * SizeOf(kType);
          const Bytes result = i % 2 == 0 ? rank.Get(on_gpu[i], bytes) : on_host[i];
          std::vector<Values> inputs;
          std::vector<test::Summand> leaves;
          for (int r = 0; r < layout.size; ++r) {
            inputs.push_back(test::Decode(kType, GradientOf(kType, r, kCounts[i])));
            leaves.push_back({inputs.back(), 1});
          }
          const double gap =
              test::GapOf(test::Decode(kType, result), test::AdasumTree(leaves).value, inputs);
          world.Expect(gap <= 2 * test::AdasumTolerance(kType, layout.size),
                       "w" + std::to_string(i) + " is off by " + std::to_string(gap));
        }
      }
      rank.stream().Finish();
    });
    world.Check();
  }
}

TEST_CASE("adasum on GPUs in process sets that overlap, and beside sums", "[gpu][adasum]") {
  GpuWorld world(LayoutOf(4, 2, ""));
  world.Run([&](GpuRank& rank) {
    const std::vector<std::vector<int>> members = {{0, 1, 2, 3}, {0, 1}, {1, 2}};
    std::vector<int> sets;
    for (const auto& ranks : members)
      sets.push_back(ranks.size() == 4 ? 0 : rank.me().AddProcessSet(ranks).value());
    for (int round = 0; round < 10; ++round) {
      std::vector<std::shared_ptr<Work>> works;
      std::vector<std::byte*> results;
      for (size_t i = 0; i < sets.size(); ++i) {
        const size_t set = (i + static_cast<size_t>(rank.me().rank())) % sets.size();
        const auto& ranks = members[set];
        if (std::find(ranks.begin(), ranks.end(), rank.me().rank()) == ranks.end()) continue;
        for (const char* op : {"adasum", "average"}) {
          results.push_back(rank.Put(test::Counting(round, 100)));
          Request request = GpuRank::Of(op, op, DataType::kFloat32, {100});
          request.process_set = sets[set];
          works.push_back(rank.Submit(request, results.back(), results.back()).value());
        }
      }
      const Values expected = test::Decode(DataType::kFloat32, test::Counting(round, 100));
      for (size_t i = 0; i < works.size(); ++i) {
        world.Expect(rank.Synchronize(*works[i]).ok(), "synchronized");
        const Values mean = test::Decode(DataType::kFloat32, rank.Get(results[i], 400));
        world.Expect(test::RelativeGap(mean, expected) < 1e-6, "the mean of equal ones");
      }
    }
    rank.stream().Finish();
  });
  world.Check();
}

}  // namespace
}  // namespace horon
