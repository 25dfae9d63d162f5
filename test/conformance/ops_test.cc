// All ops on whole runtimes: every dtype and size, one to five ranks, with and without streaming,
// one node and several, against serial references in double. All tensors of a job are submitted at
// once, by every rank in another order, so fusion and concurrent buckets are part of it.
#include <numeric>
#include <string>

#include "test/support/catch.h"
#include "test/support/op_runner.h"
#include "test/support/world.h"

namespace horon {
namespace {

using test::Bytes;
using test::Near;
using test::OpOutput;
using test::OpTensor;
using test::Values;
using test::World;

// Elements; the last is several streaming chunks (16 KiB here) and above the fusion limit below.
constexpr int64_t kCounts[] = {0, 1, 3, 17, 1000, 70'001};
constexpr int64_t kFusionBytes = 64 << 10;

struct Layout {
  int size;
  int local_size;  // 0: one node
  bool lanes;
};
constexpr Layout kLayouts[] = {{1, 0, true}, {2, 0, true},  {3, 0, true},  {4, 0, true},
                               {5, 0, true}, {3, 0, false}, {5, 0, false}, {3, 1, true},
                               {4, 2, true}, {3, 2, true},  {5, 3, true},  {4, 2, false}};

// One tensor of a job, and what came of it by rank.
struct Item {
  std::string op;
  OpTensor tensor;
  std::vector<OpOutput> outputs{};
  std::vector<Status> statuses{};
};

std::string Describe(const Layout& layout) {
  return std::to_string(layout.size) + " ranks, local size " + std::to_string(layout.local_size) +
         (layout.lanes ? "" : ", no lanes");
}

// Submits all items on this rank, beginning at another one than the other ranks do, and waits for
// all.
void RunItems(test::Rank& me, std::vector<Item>& items) {
  const auto rank = static_cast<size_t>(me.rank());
  std::vector<std::shared_ptr<Work>> works(items.size());
  for (size_t turn = 0; turn < items.size(); ++turn) {
    const size_t i = (turn + rank * 7) % items.size();
    Item& item = items[i];
    Request request = item.tensor.requests[rank];
    request.name = item.tensor.name;
    request.op = item.op;
    // Every second tensor gets its output from the Work.
    OpOutput& output = item.outputs[rank];
    if (i % 2 == 0) output.bytes.resize(item.tensor.inputs[rank].size());
    const auto work = me.Submit(request, item.tensor.inputs[rank].data(),
                                i % 2 == 0 ? output.bytes.data() : nullptr);
    item.statuses[rank] = work.status();
    if (work.ok()) works[i] = work.value();
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (!works[i]) continue;
    Item& item = items[i];
    item.statuses[rank] = me.Wait(*works[i]);
    const Output& from = works[i]->outputs()[0];
    OpOutput& output = item.outputs[rank];
    if (!item.statuses[rank].ok() || from.owned.data() == nullptr) continue;
    const int64_t bytes = CountOf(from.shape) * SizeOf(item.tensor.requests[rank].dtype);
    output = {from.shape, Bytes(from.data, from.data + bytes), from.received_splits};
  }
}

void RunJob(const Layout& layout, std::vector<Item>& items) {
  test::WorldOptions options;
  options.local_size = layout.local_size;
  options.lanes = layout.lanes;
  options.configure = [](Config& config) { config.fusion_bytes = kFusionBytes; };
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].tensor.Named("t" + std::to_string(i));
    items[i].outputs.resize(static_cast<size_t>(layout.size));
    items[i].statuses.resize(static_cast<size_t>(layout.size));
  }
  World(layout.size, options).Run([&](test::Rank& me) { RunItems(me, items); });
}

void RequireOk(const Item& item) {
  for (const Status& status : item.statuses) {
    INFO(item.op << " of " << NameOf(item.tensor.requests[0].dtype) << " "
                 << ToString(item.tensor.requests[0].shape) << ": " << status.message());
    REQUIRE(status.ok());
  }
}

void RequireSameBits(const Item& item) {
  for (const OpOutput& output : item.outputs) REQUIRE(output.bytes == item.outputs[0].bytes);
}

std::vector<Values> InputsOf(DataType dtype, int size, int64_t count) {
  std::vector<Values> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(test::SmallValues(dtype, rank, count));
  return inputs;
}

TEST_CASE("elementwise ops", "[conformance]") {
  struct Kind {
    const char* op;
    ReduceKind kind;
    bool average;
  };
  constexpr Kind kKinds[] = {{"sum", ReduceKind::kSum, false},
                             {"average", ReduceKind::kSum, true},
                             {"min", ReduceKind::kMin, false},
                             {"max", ReduceKind::kMax, false},
                             {"product", ReduceKind::kProduct, false}};
  for (const Layout& layout : kLayouts) {
    INFO(Describe(layout));
    std::vector<Item> items;
    std::vector<Values> references;
    for (const Kind& kind : kKinds) {
      for (const DataType dtype : test::kAllTypes) {
        for (const int64_t count : kCounts) {
          // The scale factors alternate; where a scaled one means nothing it stays unscaled.
          const double postscale =
              items.size() % 3 == 0 && Supports(kind.kind, dtype, true) ? 0.5 : 1.0;
          if (!Supports(kind.kind, dtype, kind.average || postscale != 1.0)) continue;
          const auto inputs = InputsOf(dtype, layout.size, count);
          items.push_back({kind.op, OpTensor::Make(dtype, inputs).Scaled(1.0, postscale)});
          references.push_back(test::Reduced(kind.kind, dtype, inputs, 1.0,
                                             kind.average ? postscale / layout.size : postscale));
        }
      }
    }
    RunJob(layout, items);
    for (size_t i = 0; i < items.size(); ++i) {
      RequireOk(items[i]);
      RequireSameBits(items[i]);
      const DataType dtype = items[i].tensor.requests[0].dtype;
      INFO(items[i].op << " of " << NameOf(dtype) << " "
                       << ToString(items[i].tensor.requests[0].shape));
      REQUIRE(Near(dtype, test::Decode(dtype, items[i].outputs[0].bytes), references[i]));
    }
  }
}

TEST_CASE("broadcast", "[conformance]") {
  for (const Layout& layout : kLayouts) {
    INFO(Describe(layout));
    std::vector<Item> items;
    std::vector<size_t> roots;
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t count : kCounts) {
        roots.push_back(items.size() % static_cast<size_t>(layout.size));
        items.push_back({"broadcast:root=" + std::to_string(roots.back()),
                         OpTensor::Make(dtype, InputsOf(dtype, layout.size, count))});
      }
    }
    RunJob(layout, items);
    for (size_t i = 0; i < items.size(); ++i) {
      RequireOk(items[i]);
      for (const OpOutput& output : items[i].outputs)
        REQUIRE(output.bytes == items[i].tensor.inputs[roots[i]]);
    }
  }
}

TEST_CASE("allgather and alltoall", "[conformance]") {
  for (const Layout& layout : kLayouts) {
    INFO(Describe(layout));
    std::vector<Item> items;
    std::vector<std::vector<Bytes>> expected;  // by item, rank
    std::vector<std::vector<std::vector<int64_t>>> received;
    const auto size = static_cast<size_t>(layout.size);
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t rows_of_a_peer : {int64_t{0}, int64_t{1}, int64_t{5000}}) {
        // From rank f to rank t go rows + f + 2t rows; an allgather of the same tensors beside it.
        std::vector<Values> values;
        std::vector<std::vector<int64_t>> splits(size);
        std::vector<Bytes> to_rank(size);
        std::vector<std::vector<int64_t>> rows_to(size);
        Bytes joined;
        for (size_t from = 0; from < size; ++from) {
          for (size_t to = 0; to < size; ++to) {
            splits[from].push_back(
                rows_of_a_peer == 0 ? 0 : rows_of_a_peer + static_cast<int64_t>(from + 2 * to));
          }
          const int64_t rows =
              std::accumulate(splits[from].begin(), splits[from].end(), int64_t{0});
          values.push_back(test::SmallValues(dtype, static_cast<int>(from), rows));
          const Bytes bytes = test::Encode(dtype, values.back());
          joined.insert(joined.end(), bytes.begin(), bytes.end());
          auto at = bytes.begin();
          for (size_t to = 0; to < size; ++to) {
            const auto end = at + splits[from][to] * SizeOf(dtype);
            to_rank[to].insert(to_rank[to].end(), at, end);
            rows_to[to].push_back(splits[from][to]);
            at = end;
          }
        }
        items.push_back({"alltoall", OpTensor::Make(dtype, values)});
        for (size_t rank = 0; rank < size; ++rank)
          items.back().tensor.requests[rank].splits = splits[rank];
        expected.push_back(to_rank);
        received.push_back(rows_to);
        items.push_back({"allgather", OpTensor::Make(dtype, values)});
        expected.emplace_back(size, joined);
        std::vector<int64_t> rows_by_rank;
        for (const Values& one : values) rows_by_rank.push_back(static_cast<int64_t>(one.size()));
        received.emplace_back(size, rows_by_rank);
      }
    }
    RunJob(layout, items);
    for (size_t i = 0; i < items.size(); ++i) {
      RequireOk(items[i]);
      for (size_t rank = 0; rank < size; ++rank) {
        if (expected[i][rank].empty()) continue;  // no memory behind it
        REQUIRE(items[i].outputs[rank].bytes == expected[i][rank]);
        REQUIRE(items[i].outputs[rank].received == received[i][rank]);
      }
    }
  }
}

TEST_CASE("reduce_scatter and barrier", "[conformance]") {
  for (const Layout& layout : kLayouts) {
    INFO(Describe(layout));
    std::vector<Item> items;
    std::vector<Values> references;
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t count : kCounts) {
        const bool average = items.size() % 2 == 1 && dtype != DataType::kBool;
        const auto inputs = InputsOf(dtype, layout.size, count);
        items.push_back({average ? "reduce_scatter:op=average" : "reduce_scatter",
                         OpTensor::Make(dtype, inputs)});
        references.push_back(
            test::Reduced(ReduceKind::kSum, dtype, inputs, 1.0, average ? 1.0 / layout.size : 1.0));
      }
    }
    const auto size = static_cast<size_t>(layout.size);
    items.push_back({"barrier", OpTensor::Make(DataType::kUInt8, std::vector<Values>(size))
                                    .Shaped(std::vector<Shape>(size))});
    RunJob(layout, items);
    RequireOk(items.back());
    for (size_t i = 0; i < references.size(); ++i) {
      RequireOk(items[i]);
      const DataType dtype = items[i].tensor.requests[0].dtype;
      Values joined;
      for (const OpOutput& output : items[i].outputs) {
        const auto part = output.shape.empty() ? Values{} : test::Decode(dtype, output.bytes);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      REQUIRE(Near(dtype, joined, references[i]));
    }
  }
}

TEST_CASE("staged proofs: dissemination and top-k", "[conformance]") {
  for (const Layout& layout : kLayouts) {
    INFO(Describe(layout));
    std::vector<Item> items;
    for (const DataType dtype :
         {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const int64_t count : kCounts) {
        for (const char* op :
             {"dissemination", "dissemination:hierarchical=1", "topk:ratio=1", "topk:ratio=0.25"}) {
          items.push_back({op, OpTensor::Make(dtype, InputsOf(dtype, layout.size, count))});
        }
      }
    }
    RunJob(layout, items);
    for (const Item& item : items) {
      RequireOk(item);
      const DataType dtype = item.tensor.requests[0].dtype;
      std::vector<Values> before, after;
      for (const Bytes& input : item.tensor.inputs) before.push_back(test::Decode(dtype, input));
      for (const OpOutput& output : item.outputs)
        after.push_back(test::Decode(dtype, output.bytes));
      const Values mean = test::Reduced(ReduceKind::kSum, dtype, before, 1.0, 1.0 / layout.size);
      INFO(item.op << " of " << NameOf(dtype) << " x " << mean.size());
      if (item.op.starts_with("topk")) RequireSameBits(item);
      if (item.op == "topk:ratio=1")
        REQUIRE(Near(DataType::kFloat16 == dtype || DataType::kBFloat16 == dtype
                         ? dtype
                         : DataType::kFloat32,
                     after[0], mean));
      if (item.op == "dissemination") {  // round 0: conserves the mean
        REQUIRE(Near(DataType::kBFloat16,
                     test::Reduced(ReduceKind::kSum, dtype, after, 1.0, 1.0 / layout.size), mean));
      }
    }
  }
}

TEST_CASE("what the ranks disagree on fails everywhere with one sentence, and the runtime goes on",
          "[conformance]") {
  for (const Layout& layout : {Layout{3, 0, true}, Layout{3, 2, true}}) {
    std::vector<Item> items;
    const auto three = [](DataType dtype) {
      return OpTensor::Make(dtype, {{1, 2}, {3, 4}, {5, 6}});
    };
    items.push_back({"sum", three(DataType::kFloat32)});
    items.back().tensor.requests[1].shape = {1, 2};
    items.push_back({"sum", three(DataType::kFloat32)});
    items.push_back({"alltoall", three(DataType::kInt32)});
    items.push_back({"topk:count=1", three(DataType::kInt32)});
    items.push_back({"broadcast:root=2", three(DataType::kInt64)});
    RunJob(layout, items);
    const std::string sentences[] = {
        "Mismatched ALLREDUCE tensor shapes for tensor 't0': ranks [0, 2] have shape [2], rank [1] "
        "has shape [1, 2].",
        "",
        "alltoall of tensor 't2' on rank [0]: splits not provided, but the first dimension, 2, is "
        "not an even "
        "multiple of the number of ranks, 3.",
        "Op 'topk:count=1' needs a floating data type; tensor 't3' is int32.", ""};
    for (size_t i = 0; i < items.size(); ++i) {
      for (const Status& status : items[i].statuses) {
        REQUIRE(status.message() == sentences[i]);
        REQUIRE(status.code() == (sentences[i].empty() ? Code::kOk : Code::kInvalidArgument));
      }
    }
  }
}

}  // namespace
}  // namespace horon
