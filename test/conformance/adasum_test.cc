// Adasum on whole runtimes: all layouts, sizes and dtypes against the reference tree, and ranks
// that disagree about it.
#include <array>
#include <atomic>
#include <bit>

#include "test/support/job.h"
#include "test/support/road.h"
#include "test/unit/ops/adasum_reference.h"

namespace horon {
namespace {

using test::Item;
using test::Layout;
using test::OpOutput;
using test::OpTensor;
using test::Rank;
using test::RequireNone;
using test::Tensor;
using test::Values;
using test::Verdicts;
using test::World;
using test::WorldOptions;

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32,
                                DataType::kFloat64};

// By the definition over nodes. Where these are equal and of 2^k neighbours it is that over ranks.
Values Reference(const Layout& layout, const std::vector<Values>& by_rank,
                 const std::string& local = "adasum") {
  const int each = layout.local_size == 0 ? layout.size : layout.local_size;
  const bool flat = layout.size % each == 0 && std::has_single_bit(static_cast<unsigned>(each));
  if (flat && local == "adasum") return test::AdasumOf(by_rank);
  return test::AdasumOverNodes(Topology::Blocks(layout.size, each), by_rank, local);
}

TEST_CASE("adasum is the reference tree on every layout", "[conformance][jobs][adasum]") {
  for (const Layout& layout : test::JobLayouts()) {
    INFO(test::Describe(layout));
    std::vector<Item> items;
    std::vector<std::vector<Values>> inputs;
    for (const DataType dtype : kFloats) {
      for (const int64_t count : test::JobCounts()) {
        for (const char* op : {"adasum", "adasum:algo=tree"}) {
          std::vector<Values> by_rank;
          for (int rank = 0; rank < layout.size; ++rank) {
            by_rank.push_back(test::Gradient(dtype, rank, count, static_cast<unsigned>(count)));
          }
          items.push_back({op, OpTensor::Make(dtype, by_rank)});
          inputs.push_back(std::move(by_rank));
        }
      }
    }
    test::RunJob(layout, items);
    for (size_t i = 0; i < items.size(); ++i) {
      REQUIRE(test::FailureOf(items[i]) == "");
      REQUIRE(test::SameBitsEverywhere(items[i]));
      INFO(test::Describe(items[i]));
      const DataType dtype = items[i].dtype();
      const Values result = test::Decode(dtype, items[i].outputs[0].bytes);
      const double gap = test::GapOf(result, Reference(layout, inputs[i]), inputs[i]);
      REQUIRE(gap <= 2 * test::AdasumTolerance(dtype, layout.size));
    }
  }
}

// Every path, for 1 to 17 ranks on one node and on several, unequal ones among them. The last count
// is more than what goes by doubling: it is swapped over the lane on one node.
TEST_CASE("adasum's paths are their definitions on 1 to 17 ranks", "[conformance][adasum]") {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    const DataType dtype = kFloats[ranks % 4];
    for (const int local_size : {0, 1 + ranks % 5}) {
      const Layout layout{ranks, local_size, true};
      std::vector<Item> items;
      std::vector<std::vector<Values>> inputs;
      for (const int64_t count : {0, 1, 5, 33, 2500, 40'001}) {
        for (const char* op : {"adasum", "adasum:algo=halving,chunk=8192", "adasum:algo=doubling",
                               "adasum:algo=tree", "adasum:algo=ring", "adasum:local=average",
                               "adasum:local=sum", "adasum:local=average,algo=tree"}) {
          std::vector<Values> by_rank;
          for (int rank = 0; rank < ranks; ++rank) {
            by_rank.push_back(test::Gradient(dtype, rank, count, static_cast<unsigned>(count)));
          }
          items.push_back({op, OpTensor::Make(dtype, by_rank)});
          inputs.push_back(std::move(by_rank));
        }
      }
      test::RunJob(layout, items);
      test::Ring ring;
      for (int rank = 0; rank < ranks; ++rank) ring.push_back(rank);
      for (size_t i = 0; i < items.size(); ++i) {
        INFO(test::Describe(layout) << ": " << test::Describe(items[i]));
        REQUIRE(test::FailureOf(items[i]) == "");
        REQUIRE(test::SameBitsEverywhere(items[i]));
        const std::string& op = items[i].op;
        const auto has = [&](const char* word) { return op.find(word) != std::string::npos; };
        const std::string local = has("average") ? "average" : has("local=sum") ? "sum" : "adasum";
        const Values want = has("ring") ? test::AdasumAlong({ring}, inputs[i])
                                        : Reference(layout, inputs[i], local);
        const Values result = test::Decode(dtype, items[i].outputs[0].bytes);
        const double rounded = test::AdasumTolerance(dtype, ranks) * (has("ring") ? ranks : 2);
        REQUIRE(test::GapOf(result, want, inputs[i]) <= rounded);
      }
    }
  }
}

TEST_CASE("ranks with other knobs of adasum hear of both", "[adasum]") {
  const std::vector<std::array<const char*, 3>> knobs = {
      {"algo", "tree", "adasum:algo=doubling"},
      {"chunk", "512", "adasum:chunk=64"},
      {"kernel", "cublas", "adasum:kernel=fused"}};
  for (const auto& [knob, value, same] : knobs) {
    WorldOptions options;
    options.configure_rank = [&](int rank, Config& config) {
      if (rank == 1) config.op_defaults["adasum"][knob] = value;
    };
    Verdicts verdicts;
    World(3, options).Run([&](Rank& me) {
      std::vector<float> values(8, 1);
      const Status status = me.Reduce("grad", "adasum", values);
      EXPECT(status.code() == Code::kInvalidArgument, "not refused");
      for (const char* word :
           {"grad", "ranks [0, 2] have adasum,", "rank [1] has adasum:", knob, value}) {
        EXPECT(status.message().find(word) != std::string::npos, status.message());
      }
      EXPECT(me.Reduce("after", same, values).ok() && values[0] == 1, "did not go on");
      const Status local =
          me.Reduce("local", me.rank() == 2 ? "adasum:local=sum" : "adasum", values);
      EXPECT(local.message().find("local=sum") != std::string::npos, local.message());
    });
    RequireNone(verdicts);
  }
}

TEST_CASE("adasum on process sets, from the cache, and with join's neighbours", "[adasum]") {
  Verdicts verdicts;
  World(5).Run([&](Rank& me) {
    const auto set = me.AddProcessSet({0, 2, 3});
    for (int step = 0; step < 3; ++step) {  // the second time it comes from the cache
      std::vector<float> values(100, 0.0f);
      values[static_cast<size_t>(me.rank())] = 2;
      EXPECT(me.Reduce("all", "adasum", values).ok() && values[4] == 2, "orthogonal ones add");
      if (me.rank() == 1 || me.rank() == 4) continue;
      Request request = Tensor("three", "adasum", {100});
      request.process_set = set.value();
      values.assign(100, static_cast<float>(me.rank()));
      values[99] = 0;
      EXPECT(me.Run(request, values.data(), values.data()).ok(), "on a set");
      // Rank 0 brings zeros and counts as orthogonal: 2 and 3 are parallel, in the tree of 0, 2, 3
      // zero and 3 fold to 3 (two leaves), then 3 and 2 average: (2 * 3 + 2) / 3.
      EXPECT(std::fabs(values[0] - 8.0f / 3) < 1e-6f, std::to_string(values[0]));
    }
  });
  RequireNone(verdicts);
}

struct Case {
  int ranks;
  DataType dtype;
  bool in_place;
  double prescale, postscale;
};

// A bucket of tensors that a lane's slots hold, one that they do not, on 3 ranks one that not even
// its memory for rows holds, and each tensor alone.
TEST_CASE("adasum over a lane has the bits of adasum by messages", "[conformance][adasum]") {
  std::vector<std::vector<int64_t>> buckets = {
      {4'500'001},
      {40'000},
      {20'001, 1, 0, 4096, 3},
      {300'001},
      {120'000, 7, 65'537, 1024, 2049}};
  for (const Case& c : {Case{3, DataType::kFloat32, false, 1, 1},
                        {3, DataType::kFloat64, true, 0.5, 0.25},
                        {5, DataType::kBFloat16, true, 1, 0.5},
                        {6, DataType::kFloat16, false, 2, 1},
                        {7, DataType::kFloat32, true, 1, 1},
                        {12, DataType::kFloat32, false, 1, 2},
                        {2, DataType::kFloat32, false, 1, 1},
                        {2, DataType::kFloat16, true, 1, 1},
                        {2, DataType::kFloat64, true, 0.5, 3},
                        {4, DataType::kFloat32, true, 1, 0.25},
                        {4, DataType::kBFloat16, false, 2, 1},
                        {8, DataType::kFloat32, false, 1, 1}}) {
    INFO(c.ranks << " ranks, " << NameOf(c.dtype));
    Verdicts verdicts;
    std::atomic<int64_t> swapped{0};
    World(c.ranks).Run([&](Rank& me) {
      int step = 0;
      for (const auto& counts : buckets) {
        std::vector<std::vector<test::Bytes>> results;
        for (const std::string op : {"adasum", "adasum:algo=halving", "alone"}) {
          std::vector<test::Bytes> inputs, outputs;
          for (const int64_t count : counts) {
            inputs.push_back(test::Encode(
                c.dtype, test::Gradient(c.dtype, me.rank(), count, static_cast<unsigned>(count))));
            outputs.push_back(c.in_place ? inputs.back() : test::Bytes(inputs.back().size()));
          }
          std::vector<Request> requests;
          std::vector<const void*> from;
          std::vector<void*> to;
          for (size_t i = 0; i < counts.size(); ++i) {
            requests.push_back(Tensor("t" + std::to_string(i), op == "alone" ? "adasum" : op,
                                      {counts[i]}, c.dtype));
            requests.back().prescale = c.prescale;
            requests.back().postscale = c.postscale;
            to.push_back(outputs[i].data());
            from.push_back(c.in_place ? to.back() : inputs[i].data());
          }
          if (op == "alone") {
            for (size_t i = 0; i < counts.size(); ++i)
              EXPECT(me.Run(requests[i], from[i], to[i]).ok(), "a tensor alone");
          } else {
            const auto work = me.SubmitGroup(requests, from, to, "step " + std::to_string(++step));
            EXPECT(work.ok() && me.Wait(*work.value()).ok(), op);
          }
          results.push_back(std::move(outputs));
        }
        EXPECT(results[0] == results[1], "other bits than by messages");
        EXPECT(results[0] == results[2], "other bits than each alone");
      }
      swapped += me.runtime().counters()["lane.swapped"].value();
    });
    RequireNone(verdicts);
    if (buckets[0][0] == 4'500'001) buckets.erase(buckets.begin());  // once: it takes long
    CHECK(swapped >= c.ranks * 4);
  }
}

}  // namespace
}  // namespace horon
