// What comes out of buckets of GPU tensors, whichever way they go: every op, type and layout. Each
// test ends with no complaint of any GPU about the order of its work.
#include <algorithm>
#include <atomic>
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
  const std::string way = layout.way;
  std::atomic<int> this_way = 0;
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    Request request = GpuRank::Of("rows", op, DataType::kFloat32, {});
    Bytes bytes;
    fill(me, request, bytes);
    const Result<Bytes> got = rank.RunOwned(request, bytes);
    if (!got.ok()) return;
    results[static_cast<size_t>(me)] = test::Decode(request.dtype, got.value());
    if (!way.empty() && rank.me().runtime().counters()[way].value() > 0) ++this_way;
  });
  world.Check();
  // Not every rank has something for other nodes.
  INFO(op << ": " << this_way << " ranks went by " << way);
  if (!way.empty())
    CHECK(this_way >= (way == "gpu.exchanges.direct" ? 1 : layout.size));
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

// Of more chunks than there are places for on the host, and more than is added at once.
TEST_CASE("a large exchange between nodes takes little memory beside the tensors", "[gpu]") {
  constexpr int64_t kCount = 20'000'003, kBytes = kCount * 4;  // 80 MB: 20 chunks
  for (const char* const op : {"sum", "broadcast:root=1"}) {
    for (const bool direct : {false, true}) {
      INFO(op << (direct ? ", directly" : ""));
      Layout layout = test::LayoutOf(2, 1, "");
      if (direct) layout.direct = {-1};
      layout.configure_rank = [](int, Config& config) { config.fusion_bytes = 1 << 20; };
      const bool sums = op[0] == 's';
      GpuWorld world(layout);
      world.Run([&](GpuRank& rank) {
        const int me = rank.me().rank();
        std::vector<float> values(kCount);
        for (int64_t i = 0; i < kCount; ++i)
          values[static_cast<size_t>(i)] = static_cast<float>((i * 7 + me * 13) % 1021);
        const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
        std::byte* const tensor = rank.Put(Bytes(bytes, bytes + kBytes));
        const int64_t before = rank.gpu().taken();
        const Request request = GpuRank::Of("large", op, DataType::kFloat32, {kCount});
        const auto work = rank.Submit(request, tensor, tensor);
        const Status status = work.ok() ? rank.Synchronize(*work.value()) : work.status();
        world.Expect(status.ok(), status.message());
        const Bytes result = rank.Get(tensor, kBytes);
        int64_t wrong = 0;
        for (int64_t i = 0; i < kCount; ++i) {
          float got = 0;
          std::memcpy(&got, result.data() + i * 4, sizeof got);
          const auto other = static_cast<float>((i * 7 + 13) % 1021);
          const auto expected = other + (sums ? static_cast<float>(i * 7 % 1021) : 0);
          wrong += got == expected ? 0 : 1;
        }
        world.Expect(wrong == 0, std::to_string(wrong) + " elements are wrong");
        constexpr int64_t kMiB = 1 << 20;
        const int64_t block = sums ? 80 * kMiB : 0;
        world.Expect(rank.gpu().taken() - before <= block + (direct && sums ? 32 * kMiB : 0),
                     std::to_string((rank.gpu().taken() - before) / kMiB) + " MiB of the device");
        world.Expect(rank.gpu().pinned() <= (direct ? 0 : 64 * kMiB),
                     std::to_string(rank.gpu().pinned() / kMiB) + " MiB pinned");
      });
      world.Check();
    }
  }
}

// Each rank has more chunks to send, and to take, than there are places on the host.
TEST_CASE("large rows of three nodes go through few places on the host", "[gpu]") {
  constexpr int64_t kCount = 9'000'000;  // and a little, of rank r: nine chunks for each peer
  const auto count_of = [](int rank) { return kCount + 3 * rank; };
  GpuWorld world(test::LayoutOf(3, 1, "gpu.buckets.nodes"));
  world.Run([&](GpuRank& rank) {
    const auto value = [](int of, int64_t i) {
      return static_cast<float>((i * 7 + of * 13) % 1021);
    };
    const int me = rank.me().rank();
    std::vector<float> values(static_cast<size_t>(count_of(me)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(me, static_cast<int64_t>(i));
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    std::byte* const tensor = rank.Put(Bytes(bytes, bytes + count_of(me) * 4));
    const Request request = GpuRank::Of("rows", "allgather", DataType::kFloat32, {count_of(me)});
    const auto work = rank.Submit(request, tensor, nullptr);
    const Status status = work.ok() ? rank.Synchronize(*work.value()) : work.status();
    world.Expect(status.ok(), status.message());
    if (!status.ok()) return;
    const Output& output = work.value()->outputs()[0];
    const Bytes got = rank.Get(output.data, CountOf(output.shape()) * 4);
    int64_t wrong = 0;
    size_t at = 0;
    for (int r = 0; r < 3; ++r) {
      for (int64_t i = 0; i < count_of(r); ++i, at += 4) {
        float is = 0;
        std::memcpy(&is, got.data() + at, sizeof is);
        wrong += is == value(r, i) ? 0 : 1;
      }
    }
    world.Expect(wrong == 0 && at == got.size(), std::to_string(wrong) + " elements are wrong");
    world.Expect(rank.gpu().pinned() <= 128 << 20, std::to_string(rank.gpu().pinned()) + " pinned");
  });
  world.Check();
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

  // One row less: the last rank has none.
  for (const DataType dtype : {DataType::kInt32, DataType::kBFloat16, DataType::kFloat64}) {
    INFO(NameOf(dtype));
    const auto of = [&](int r) { return test::SmallValues(dtype, r, 3 * (n - 1)); };
    const auto few = RunOwned(layout, "reduce_scatter", [&](int r, Request& request, Bytes& bytes) {
      request.dtype = dtype;
      request.shape = {n - 1, 3};
      bytes = test::Encode(dtype, of(r));
    });
    std::vector<Values> inputs;
    for (int r = 0; r < n; ++r) inputs.push_back(of(r));
    const Values sums = test::Reduced(ReduceKind::kSum, dtype, inputs, 1.0, 1.0);
    Values got;
    for (int r = 0; r < n; ++r) {
      const Values& rows = few[static_cast<size_t>(r)];
      REQUIRE(rows.size() == (r < n - 1 ? 3u : 0u));
      got.insert(got.end(), rows.begin(), rows.end());
    }
    REQUIRE(test::Near(dtype, got, sums));
  }

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

// Of different lengths, some of nothing: tensor i of rank r has `rows(r, i)` rows of three bytes.
void CheckMovingTogether(const Layout& layout) {
  INFO(layout.size << " ranks, " << layout.local_size << " a node, " << layout.way);
  const int n = layout.size;
  constexpr int kTensors = 5;
  const auto rows = [](int rank, int tensor) { return (rank * 3 + tensor * 2) % 7; };
  const auto bytes_of = [](int rank, int tensor, int64_t count) {
    Bytes bytes;
    for (int64_t i = 0; i < count; ++i)
      bytes.push_back(static_cast<std::byte>(rank * 50 + tensor * 9 + i));
    return bytes;
  };
  for (const int root : {0, n - 1}) {
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      const int me = rank.me().rank();
      std::vector<std::byte*> inputs, outputs;
      std::vector<int64_t> counts;
      for (int i = 0; i < kTensors; ++i) {
        counts.push_back(i * 13);
        outputs.push_back(rank.Put(bytes_of(me, i, counts.back())));
      }
      const auto told = rank.SubmitTogether("b", "broadcast:root=" + std::to_string(root), outputs,
                                            counts, DataType::kUInt8);
      world.Expect(told.ok() && rank.Synchronize(*told.value()).ok(), "told");
      for (int i = 0; i < kTensors; ++i) {
        const int64_t count = counts[static_cast<size_t>(i)];
        world.Expect(rank.Get(outputs[static_cast<size_t>(i)], count) == bytes_of(root, i, count),
                     "broadcast tensor " + std::to_string(i));
      }
      std::vector<Shape> shapes;
      for (int i = 0; i < kTensors; ++i) {
        shapes.push_back({rows(me, i), 3});
        inputs.push_back(rank.Put(bytes_of(me, i, rows(me, i) * 3)));
      }
      const auto gathered = rank.GatherTogether("g", "allgather", inputs, shapes, DataType::kUInt8);
      const bool fine = gathered.ok() && rank.Synchronize(*gathered.value()).ok();
      world.Expect(fine, "gathered");
      if (!fine) return;
      for (int i = 0; i < kTensors; ++i) {
        Bytes expected;
        for (int r = 0; r < n; ++r) {
          const Bytes part = bytes_of(r, i, rows(r, i) * 3);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const Output& output = gathered.value()->outputs()[static_cast<size_t>(i)];
        world.Expect(CountOf(output.shape()) == static_cast<int64_t>(expected.size()) &&
                         rank.Get(output.data, CountOf(output.shape())) == expected,
                     "gathered tensor " + std::to_string(i));
      }
      const uint64_t this_way = rank.me().runtime().counters()[layout.way].value();
      world.Expect(this_way == 2, "other ways");
    });
    world.Check();
  }
}

TEST_CASE("several tensors move together on GPUs, whichever way they go", "[gpu]") {
  for (const Layout& layout : kLayouts) CheckMovingTogether(layout);
  for (const auto& [size, local] : std::vector<std::pair<int, int>>{{6, 2}, {6, 3}, {5, 1}, {8, 2}})
    CheckMovingTogether(test::LayoutOf(size, local, "gpu.buckets.nodes"));
}

TEST_CASE("rows go between many nodes out of the GPU's memory, or through the host", "[gpu]") {
  for (const auto& [size, local] :
       std::vector<std::pair<int, int>>{{6, 2}, {6, 3}, {5, 1}, {8, 2}}) {
    CheckMoving(test::LayoutOf(size, local, "gpu.buckets.nodes"));
    Layout direct = test::LayoutOf(size, local, "gpu.exchanges.direct");
    direct.direct = {-1};
    CheckMoving(direct);
  }
}

TEST_CASE("rows go between nodes through memory that is registered", "[gpu]") {
  for (const MemoryRegistration how : {MemoryRegistration::kEach, MemoryRegistration::kTogether}) {
    Layout layout = test::LayoutOf(4, 2, "gpu.buckets.nodes");
    layout.choices.groups.registration = how;
    CheckMoving(layout);
    CheckMovingTogether(layout);
  }
}

// One rank of each node, all of one node and part of another.
TEST_CASE("ops on GPUs move rows in process sets that span nodes", "[gpu]") {
  for (const int direct : {0, 1}) {
    Layout layout = test::LayoutOf(4, 2, "");
    if (direct == 1) layout.direct = {-1};
    GpuWorld world(layout);
    world.Run([&](GpuRank& rank) {
      const int me = rank.me().rank();
      const auto floats = [](const Bytes& bytes) {
        return test::Decode(DataType::kFloat32, bytes);
      };
      for (const auto& members : std::vector<std::vector<int>>{{0, 2}, {1, 3}, {0, 1, 3}}) {
        const int set = rank.me().AddProcessSet(members).value();
        const auto at = std::find(members.begin(), members.end(), me);
        if (at == members.end()) continue;
        const auto n = static_cast<int>(members.size());
        const auto place = static_cast<int>(at - members.begin());
        const auto run = [&](const std::string& op, Shape shape, int64_t first) {
          Request request = GpuRank::Of(op, op, DataType::kFloat32, shape);
          request.process_set = set;
          const Result<Bytes> got = rank.RunOwned(request, Counting(first, CountOf(shape)));
          world.Expect(got.ok(), op + ": " + got.status().message());
          return got.ok() ? floats(got.value()) : Values{};
        };
        Values gathered, turned, sums;
        for (const int r : members) {
          const Values rows = floats(Counting(100 * r, 2 * (r + 1)));
          gathered.insert(gathered.end(), rows.begin(), rows.end());
          for (int i = 0; i < 3; ++i) turned.push_back(100 * r + 3 * place + i);
        }
        const int first = place == 0 ? 0 : 2 * (place + 1);  // one row more than members
        for (int i = first; i < 2 * (place + 2); ++i) {
          sums.push_back(0);
          for (const int r : members) sums.back() += r + i;
        }
        const int root = members.back();
        world.Expect(run("allgather", {me + 1, 2}, 100 * me) == gathered, "other rows");
        world.Expect(run("alltoall", {n, 3}, 100 * me) == turned, "other parts");
        world.Expect(run("reduce_scatter", {n + 1, 2}, me) == sums, "other sums");
        world.Expect(run("broadcast:root=" + std::to_string(root), {5}, 10 * me) ==
                         floats(Counting(10 * root, 5)),
                     "other values");
      }
    });
    world.Check();
  }
}

// What is on the way fills several chunks of 4 MiB, and each link carries it once.
TEST_CASE("large rows between nodes go in chunks, once to each node", "[gpu]") {
  constexpr int64_t kRows = 600'001, kMost = kRows * 16;
  for (const char* const op : {"allgather", "reduce_scatter", "broadcast:root=1"}) {
    INFO(op);
    GpuWorld world(test::LayoutOf(4, 2, ""));
    const bool moves = std::string(op) != "reduce_scatter";
    world.Run([&](GpuRank& rank) {
      const int me = rank.me().rank();
      std::vector<float> values(kRows * 4);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((i * 7 + static_cast<size_t>(me) * 13) % 1021);
      const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
      std::byte* const tensor = rank.Put(Bytes(bytes, bytes + kMost));
      const Request request = GpuRank::Of("large", op, DataType::kFloat32, {kRows, 4});
      const auto work = rank.Submit(request, tensor, nullptr);
      const Status status = work.ok() ? rank.Synchronize(*work.value()) : work.status();
      world.Expect(status.ok(), status.message());
      if (!status.ok()) return;
      const Output& output = work.value()->outputs()[0];
      const Bytes got = rank.Get(output.data, CountOf(output.shape()) * 4);
      const bool gathers = std::string(op) == "allgather";
      const int64_t begin = moves ? 0 : (kRows / 4 * me + std::min<int64_t>(me, kRows % 4)) * 4;
      int64_t wrong = 0;
      for (size_t i = 0; i < got.size() / 4; ++i) {
        float is = 0, expected = 0;
        std::memcpy(&is, got.data() + i * 4, 4);
        const size_t from = gathers ? i / values.size() : 1;
        const size_t at = gathers ? i % values.size() : i + static_cast<size_t>(begin);
        for (size_t r = 0; r < 4; ++r) {
          if (!moves || r == from) expected += static_cast<float>((at * 7 + r * 13) % 1021);
        }
        wrong += is == expected ? 0 : 1;
      }
      world.Expect(wrong == 0, std::to_string(wrong) + " elements are wrong");
      world.Expect(rank.me().runtime().counters()["gpu.buckets.nodes"].value() == 1, "another way");
    });
    world.Check();
  }
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

TEST_CASE("two ranks of one GPU are named, and the job goes on", "[gpu]") {
  for (const int local : {0, 2}) {
    GpuWorld world(test::LayoutOf(4, local, ""));
    world.gpus.gpu(3).BeThe(world.gpus.gpu(2));
    world.Run([&](GpuRank& rank) {
      const int set = rank.me().AddProcessSet({0, 1}).value();
      std::byte* const tensor = rank.Put(Counting(1, 8));
      Request request = GpuRank::Of("t", "sum", DataType::kFloat32, {8});
      for (int call = 0; call < 2; ++call) {
        const Status status = rank.Synchronize(*rank.Submit(request, tensor, tensor).value());
        world.Expect(status.code() == Code::kInvalidArgument, status.message());
        world.Expect(status.message().find("ranks 2 and 3 have their tensors on the same GPU") == 0,
                     status.message());
      }
      request.process_set = set;
      if (rank.me().rank() < 2)
        world.Expect(rank.Synchronize(*rank.Submit(request, tensor, tensor).value()).ok(), "a set");
    });
    world.Check();
  }
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
