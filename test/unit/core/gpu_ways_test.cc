// What comes out of buckets of GPU tensors, whichever way they go: every op, type and layout. Each
// test ends with no complaint of any GPU about the order of its work.
#include <cstring>
#include <mutex>
#include <string>

#include "test/support/catch.h"
#include "test/support/gpu_world.h"

namespace horon {
namespace {

using test::Bytes;
using test::Counting;
using test::GpuRank;
using test::GpuWorld;
using test::kNccl;
using test::Values;
using Layout = test::GpuLayout;

// Without lanes, which read a tensor where it lies: the GPU sees messages.
Layout WithoutLanes(Layout layout) {
  layout.lanes = false;
  return layout;
}

const std::vector<Layout> kLayouts = {
    {1, 0, {kNccl}, "gpu.buckets.group"},
    {2, 0, {kNccl, kNccl}, "gpu.buckets.group"},
    {3, 0, {kNccl, kNccl, kNccl}, "gpu.buckets.group"},
    {4, 2, {kNccl, kNccl, kNccl, kNccl}, "gpu.buckets.nodes"},
    {4, 2, {kNccl, kNccl, kNccl, kNccl}, "gpu.buckets.group", true},
    {3, 1, {0, 0, 0}, "gpu.buckets.nodes"},
    {3, 2, {kNccl, kNccl, kNccl}, "gpu.buckets.host"},
    {2, 0, {0, 0}, "gpu.buckets.host"},
    {3, 0, {kNccl, kNccl, 0}, "gpu.buckets.host"},
    {2, 0, {kNccl, 22809}, "gpu.buckets.host"},
    WithoutLanes({3, 0, {0, 0, 0}, "gpu.buckets.host"}),
};

struct Case {
  std::string op;
  ReduceKind kind;
  bool average;
  DataType dtype;
  int64_t count;
  double prescale = 1.0, postscale = 1.0;
  bool in_place = false;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DataType dtype : test::kAllTypes) {
    for (const int64_t count : {0, 1, 17, 5000}) {
      cases.push_back({"sum", ReduceKind::kSum, false, dtype, count});
      cases.push_back({"max", ReduceKind::kMax, false, dtype, count, 1.0, 1.0, true});
      cases.push_back({"min", ReduceKind::kMin, false, dtype, count});
      if (dtype == DataType::kBool) continue;
      cases.push_back({"average", ReduceKind::kSum, true, dtype, count, 2.0, 0.5});
      cases.push_back({"product", ReduceKind::kProduct, false, dtype, count, 1.0, 2.0, true});
    }
  }
  return cases;
}

void CheckElementwise(const Layout& layout) {
  INFO(layout.size << " ranks, " << layout.local_size << " a node, " << layout.way);
  const std::vector<Case> cases = Cases();
  std::vector<std::vector<Values>> results(static_cast<size_t>(layout.size));
  GpuWorld world(layout);
  std::mutex mutex;
  std::vector<std::string> failures;
  world.Run([&](GpuRank& rank) {
    std::vector<std::shared_ptr<Work>> works;
    std::vector<std::byte*> outputs;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const Bytes mine =
          test::Encode(c.dtype, test::SmallValues(c.dtype, rank.me().rank(), c.count));
      std::byte* const in = rank.Put(mine);
      outputs.push_back(c.in_place ? in : rank.Put(Bytes(mine.size())));
      Request request = GpuRank::Of("t" + std::to_string(i), c.op, c.dtype, {c.count});
      request.prescale = c.prescale;
      request.postscale = c.postscale;
      auto work = rank.Submit(request, in, outputs.back());
      works.push_back(work.ok() ? work.value() : nullptr);
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const Status status = rank.Synchronize(*works[i]);
      std::lock_guard lock(mutex);
      if (!status.ok()) failures.push_back(status.message());
      results[static_cast<size_t>(rank.me().rank())].push_back(
          test::Decode(c.dtype, rank.Get(outputs[i], c.count * SizeOf(c.dtype))));
    }
    if (rank.me().runtime().counters()[layout.way].value() == 0)
      failures.push_back(std::string("not this way: ") + layout.way);
  });
  REQUIRE(failures == std::vector<std::string>{});
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    std::vector<Values> inputs;
    for (int r = 0; r < layout.size; ++r) inputs.push_back(test::SmallValues(c.dtype, r, c.count));
    const double scale = c.average ? c.postscale / layout.size : c.postscale;
    const Values expected = test::Reduced(c.kind, c.dtype, inputs, c.prescale, scale);
    INFO(c.op << " of " << NameOf(c.dtype) << " x " << c.count);
    for (const auto& of_rank : results) REQUIRE(test::Near(c.dtype, of_rank[i], expected));
  }
  world.Check();
}

TEST_CASE("elementwise ops on GPUs, whichever way they go", "[gpu]") {
  for (const Layout& layout : kLayouts) CheckElementwise(layout);
}

TEST_CASE("elementwise ops on GPUs, by NCCL's functions", "[gpu][nccl]") {
  for (Layout layout : {kLayouts[1], kLayouts[3]}) {
    layout.functions = true;
    CheckElementwise(layout);
  }
}

// Runs one op whose output the work owns; what came out, by rank.
std::vector<Values> RunOwned(const Layout& layout, const std::string& op,
                             const std::function<void(int rank, Request&, Bytes&)>& fill) {
  std::vector<Values> results(static_cast<size_t>(layout.size));
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    Request request = GpuRank::Of("rows", op, DataType::kFloat32, {});
    Bytes bytes;
    fill(me, request, bytes);
    const auto work = rank.Submit(request, rank.Put(bytes), nullptr);
    if (!work.ok() || !rank.Synchronize(*work.value()).ok()) return;
    const Output& output = work.value()->outputs()[0];
    const int64_t size = CountOf(output.shape()) * 4;
    results[static_cast<size_t>(me)] =
        test::Decode(DataType::kFloat32, rank.Get(output.data, size));
  });
  world.Check();
  return results;
}

TEST_CASE("elementwise ops go between nodes out of the GPU's memory where MPI reads it", "[gpu]") {
  for (const auto& [size, local] :
       std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {4, 2}, {4, 1}}) {
    Layout layout{size, local, std::vector<int>(static_cast<size_t>(size), kNccl),
                  "gpu.exchanges.direct"};
    layout.direct = {-1};
    CheckElementwise(layout);
  }
  // What one rank's MPI does not do none does.
  Layout some{4, 2, {kNccl, kNccl, kNccl, kNccl}, "gpu.buckets.nodes"};
  some.direct = {0, 1, 3};
  CheckElementwise(some);
}

// Of two ranks each sends three chunks, of four each two; the last one is shorter.
TEST_CASE("a large sum between nodes goes in chunks, and each comes out right", "[gpu]") {
  constexpr int64_t kCount = 2'600'003;
  const bool direct = GENERATE(false, true);
  for (const auto& [size, local] : std::vector<std::pair<int, int>>{{2, 1}, {4, 2}}) {
    INFO(size << " ranks, " << local << " a node" << (direct ? ", directly" : ""));
    Layout layout = test::LayoutOf(size, local, direct ? "gpu.exchanges.direct" : "");
    if (direct) layout.direct = {-1};
    const auto value = [](int rank, int64_t i) {
      return static_cast<float>((i * 7 + rank * 13) % 1021);
    };
    GpuWorld world(layout);
    world.Run([&, size = size](GpuRank& rank) {
      std::vector<float> values(kCount), expected(kCount);
      for (int64_t i = 0; i < kCount; ++i) {
        values[static_cast<size_t>(i)] = value(rank.me().rank(), i);
        for (int r = 0; r < size; ++r) expected[static_cast<size_t>(i)] += value(r, i);
      }
      const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
      std::byte* const tensor = rank.Put(Bytes(bytes, bytes + kCount * 4));
      const Request request = GpuRank::Of("large", "sum", DataType::kFloat32, {kCount});
      const auto work = rank.Submit(request, tensor, tensor);
      const Status status = work.ok() ? rank.Synchronize(*work.value()) : work.status();
      world.Expect(status.ok(), status.message());
      const Bytes sum = rank.Get(tensor, kCount * 4);
      int64_t wrong = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        float got = 0;
        std::memcpy(&got, sum.data() + i * sizeof got, sizeof got);
        wrong += got == expected[i] ? 0 : 1;
      }
      world.Expect(wrong == 0, std::to_string(wrong) + " elements are wrong");
      auto& counters = rank.me().runtime().counters();
      world.Expect(counters["gpu.buckets.nodes"].value() == 1, "it went another way");
      world.Expect((counters["gpu.exchanges.direct"].value() > 0) == direct, "directly, or not");
    });
    world.Check();
  }
}

void CheckMoving(const Layout& layout) {
  INFO(layout.size << " ranks, " << layout.local_size << " a node, " << layout.way);
  const int n = layout.size;
  // Rank r gives r rows of two.
  Values gathered;
  for (int r = 0; r < n; ++r) {
    for (int i = 0; i < 2 * r; ++i) gathered.push_back(100 * r + i);
  }
  const auto all = RunOwned(layout, "allgather", [](int r, Request& request, Bytes& bytes) {
    request.shape = {r, 2};
    bytes = Counting(100 * r, 2 * r);
  });
  for (const Values& values : all) REQUIRE(values == gathered);

  // Every rank sends row p to rank p.
  const auto turned = RunOwned(layout, "alltoall", [n](int r, Request& request, Bytes& bytes) {
    request.shape = {n, 3};
    bytes = Counting(100 * r, 3 * n);
  });
  for (int r = 0; r < n; ++r) {
    Values expected;
    for (int from = 0; from < n; ++from) {
      for (int i = 0; i < 3; ++i) expected.push_back(100 * from + 3 * r + i);
    }
    REQUIRE(turned[static_cast<size_t>(r)] == expected);
  }

  // One row more than ranks: the first rank has two.
  const auto cut =
      RunOwned(layout, "reduce_scatter:op=average", [n](int r, Request& request, Bytes& bytes) {
        request.shape = {n + 1, 2};
        request.prescale = 2.0;
        bytes = Counting(r, 2 * (n + 1));
      });
  Values joined;
  for (const Values& part : cut) joined.insert(joined.end(), part.begin(), part.end());
  REQUIRE(joined.size() == static_cast<size_t>(2 * (n + 1)));
  for (size_t i = 0; i < joined.size(); ++i)
    REQUIRE(joined[i] == 2.0 * (static_cast<double>(i) + (n - 1) / 2.0));

  const std::string last = std::to_string(n - 1);
  const auto told =
      RunOwned(layout, "broadcast:root=" + last, [](int r, Request& request, Bytes& bytes) {
        request.shape = {5};
        bytes = Counting(10 * r, 5);
      });
  for (const Values& values : told)
    REQUIRE(values == test::Decode(DataType::kFloat32, Counting(10 * (n - 1), 5)));
}

TEST_CASE("ops on GPUs that move rows", "[gpu]") {
  for (const Layout& layout : kLayouts) CheckMoving(layout);
}

TEST_CASE("ops on GPUs that move rows, by NCCL's functions", "[gpu][nccl]") {
  for (Layout layout : {kLayouts[1], kLayouts[3]}) {
    layout.functions = true;
    CheckMoving(layout);
  }
}

TEST_CASE("ranks that want other ways between nodes are told apart", "[gpu]") {
  Layout layout{3, 0, {kNccl, kNccl, kNccl}, ""};
  layout.configure_rank = [](int rank, Config& config) {
    if (rank == 2) config.inter = "nccl";
  };
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) {
    std::byte* const tensor = rank.Put(Counting(1, 8));
    const Request request = GpuRank::Of("t", "sum", DataType::kFloat32, {8});
    const auto work = rank.Submit(request, tensor, tensor);
    const Status status = rank.Synchronize(*work.value());
    world.Expect(status.message().find("HORON_INTER is mpi on rank 0 and nccl on rank 2") !=
                     std::string::npos,
                 status.message());
  });
  world.Check();
}

TEST_CASE("an op without a way on GPUs runs on the host", "[gpu]") {
  const Layout layout{2, 0, {kNccl, kNccl}, ""};
  const auto mean = RunOwned(layout, "dissemination", [](int r, Request& request, Bytes& bytes) {
    request.shape = {3};
    bytes = Counting(2 * r, 3);
  });
  for (const Values& values : mean) REQUIRE(values == Values{1, 2, 3});
}

}  // namespace
}  // namespace horon
