// Ops on whole runtimes: every dtype and size, one to five ranks, with and without streaming, one
// node and several, against serial references in double. moving_test.cc has those that only move
// bytes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "test/support/catch.h"
#include "test/support/job.h"

namespace horon {
namespace {

using test::Bytes;
using test::Item;
using test::Layout;
using test::Near;
using test::OpOutput;
using test::OpTensor;
using test::Values;

// Prescale and postscale of the i-th item: none, one alone, both and unlike. Results stay exact.
struct Scales {
  double before, after;
};
Scales ScalesOf(size_t i, ReduceKind kind, DataType dtype) {
  constexpr Scales kScales[] = {{1.0, 1.0}, {1.0, 0.5}, {0.5, 4.0}};
  return Supports(kind, dtype, true) ? kScales[i % std::size(kScales)] : kScales[0];
}

TEST_CASE("elementwise ops", "[conformance][jobs]") {
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
  for (const Layout& layout : test::JobLayouts()) {
    INFO(test::Describe(layout));
    std::vector<Item> items;
    std::vector<Values> references;
    for (const Kind& kind : kKinds) {
      for (const DataType dtype : test::kAllTypes) {
        for (const int64_t count : test::JobCounts()) {
          if (!Supports(kind.kind, dtype, kind.average)) continue;
          const auto [before, after] = ScalesOf(items.size(), kind.kind, dtype);
          const auto inputs = test::InputsOf(dtype, layout.size, count);
          items.push_back({kind.op, OpTensor::Make(dtype, inputs).Scaled(before, after)});
          references.push_back(test::Reduced(kind.kind, dtype, inputs, before,
                                             kind.average ? after / layout.size : after));
        }
      }
    }
    test::RunJob(layout, items);
    for (size_t i = 0; i < items.size(); ++i) {
      REQUIRE(test::FailureOf(items[i]) == "");
      REQUIRE(test::SameBitsEverywhere(items[i]));
      const DataType dtype = items[i].tensor.requests[0].dtype;
      INFO(items[i].op << " of " << NameOf(dtype) << " "
                       << ToString(items[i].tensor.requests[0].shape));
      REQUIRE(Near(dtype, test::Decode(dtype, items[i].outputs[0].bytes), references[i]));
    }
  }
}

TEST_CASE("reduce_scatter and barrier", "[conformance][jobs]") {
  for (const Layout& layout : test::JobLayouts()) {
    INFO(test::Describe(layout));
    std::vector<Item> items;
    std::vector<Values> references;
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t count : test::JobCounts()) {
        const bool average = items.size() % 2 == 1 && dtype != DataType::kBool;
        const auto [before, after] = ScalesOf(items.size(), ReduceKind::kSum, dtype);
        const auto inputs = test::InputsOf(dtype, layout.size, count);
        items.push_back({average ? "reduce_scatter:op=average" : "reduce_scatter",
                         OpTensor::Make(dtype, inputs).Scaled(before, after)});
        references.push_back(test::Reduced(ReduceKind::kSum, dtype, inputs, before,
                                           average ? after / layout.size : after));
      }
    }
    const auto size = static_cast<size_t>(layout.size);
    items.push_back({"barrier", OpTensor::Make(DataType::kUInt8, std::vector<Values>(size))
                                    .Shaped(std::vector<Shape>(size))});
    test::RunJob(layout, items);
    REQUIRE(test::FailureOf(items.back()) == "");
    for (size_t i = 0; i < references.size(); ++i) {
      REQUIRE(test::FailureOf(items[i]) == "");
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

std::vector<Values> InputsOf(const Item& item) {
  std::vector<Values> inputs;
  for (const Bytes& input : item.tensor.inputs) inputs.push_back(test::Decode(item.dtype(), input));
  return inputs;
}

// One round among participants: each keeps half of its own and gets half of another's.
std::vector<Values> Met(DataType dtype, const std::vector<Values>& before, int64_t round) {
  const size_t n = before.size();
  const int period = std::max(1, static_cast<int>(std::bit_width(n - 1)));
  const size_t distance = n == 1 ? 0 : size_t{1} << (round % period);
  std::vector<Values> after;
  for (size_t i = 0; i < n; ++i) {
    const Values& theirs = before[(i + n - distance) % n];
    after.push_back(test::Reduced(ReduceKind::kSum, dtype, {before[i], theirs}, 1.0, 0.5));
  }
  return after;
}

// By rank; unscaled.
std::vector<Values> Disseminated(const Layout& layout, const Item& item, bool hierarchical) {
  const std::vector<Values> inputs = InputsOf(item);
  const int64_t round = item.tensor.requests[0].round;
  if (!hierarchical) return Met(item.dtype(), inputs, round);
  const Topology topology = layout.local_size > 0 ? Topology::Blocks(layout.size, layout.local_size)
                                                  : Topology::OneNode(layout.size);
  std::vector<Values> means, by_rank;
  for (int node = 0; node < topology.nodes(); ++node) {
    std::vector<Values> inside;
    for (const int rank : topology.members(node))
      inside.push_back(inputs[static_cast<size_t>(rank)]);
    const auto members = static_cast<double>(inside.size());
    means.push_back(
        test::Reduced(ReduceKind::kSum, DataType::kFloat64, inside, 1.0, 1.0 / members));
  }
  means = Met(DataType::kFloat64, means, round);
  for (int rank = 0; rank < layout.size; ++rank)
    by_rank.push_back(means[static_cast<size_t>(topology.node_of(rank))]);
  return by_rank;
}

// The largest magnitudes of a tensor's first step, ties to the lower index; the rest is zero.
Values Largest(const Values& values, double ratio) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  order.resize(static_cast<size_t>(std::ceil(ratio * static_cast<double>(values.size()))));
  Values sent(values.size());
  for (const size_t i : order) sent[i] = values[i];
  return sent;
}

// By rank; unscaled.
std::vector<Values> Sparsified(const Item& item, double ratio) {
  std::vector<Values> sent;
  for (const Values& input : InputsOf(item)) sent.push_back(Largest(input, ratio));
  const auto size = static_cast<double>(sent.size());
  const Values mean = test::Reduced(ReduceKind::kSum, item.dtype(), sent, 1.0, 1.0 / size);
  return std::vector<Values>(sent.size(), mean);
}

std::vector<Values> Expected(const Layout& layout, const Item& item) {
  if (item.op == "dissemination") return Disseminated(layout, item, false);
  if (item.op == "dissemination:hierarchical=1") return Disseminated(layout, item, true);
  return Sparsified(item, item.op == "topk:ratio=1" ? 1.0 : 0.25);
}

TEST_CASE("staged proofs: dissemination and top-k", "[conformance][jobs]") {
  for (const Layout& layout : test::JobLayouts()) {
    INFO(test::Describe(layout));
    std::vector<Item> items;
    for (const DataType dtype :
         {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const int64_t count : test::JobCounts()) {
        for (const std::string op :
             {"dissemination", "dissemination:hierarchical=1", "topk:ratio=1", "topk:ratio=0.25"}) {
          const auto [before, after] = ScalesOf(items.size(), ReduceKind::kSum, dtype);
          const auto inputs = test::InputsOf(dtype, layout.size, count);
          items.push_back({op, OpTensor::Make(dtype, inputs).Scaled(before, after)});
          // Rounds 0, 1 and 2 meet different ranks.
          const auto round = static_cast<int64_t>(items.size() / 4 % 3);
          if (op.starts_with("topk")) continue;
          for (Request& request : items.back().tensor.requests) request.round = round;
        }
      }
    }
    test::RunJob(layout, items);
    for (const Item& item : items) {
      REQUIRE(test::FailureOf(item) == "");
      if (item.op.starts_with("topk")) REQUIRE(test::SameBitsEverywhere(item));
      const DataType dtype = item.dtype();
      const Request& request = item.tensor.requests[0];
      const auto expected = Expected(layout, item);
      for (size_t rank = 0; rank < expected.size(); ++rank) {
        INFO(test::Describe(item) << ", round " << request.round << ", rank " << rank);
        const Values after = test::Decode(dtype, item.outputs[rank].bytes);
        const Values reference = test::Reduced(ReduceKind::kSum, dtype, {expected[rank]},
                                               request.prescale, request.postscale);
        // Top-k counts in float32; halves of small whole numbers are exact.
        const bool narrow = dtype == DataType::kFloat64 && item.op.starts_with("topk");
        if (item.op == "dissemination") REQUIRE(after == reference);
        REQUIRE(Near(narrow ? DataType::kFloat32 : dtype, after, reference));
      }
    }
  }
}

TEST_CASE("what the ranks disagree on fails everywhere with one sentence, and the runtime goes on",
          "[conformance][jobs]") {
  for (const Layout& layout : test::JobLayouts()) {
    if (layout.size == 1) continue;  // a rank agrees with itself
    INFO(test::Describe(layout));
    const std::string size = std::to_string(layout.size), rows = std::to_string(layout.size + 1);
    std::vector<Item> items;
    const auto tensor = [&](DataType dtype) {
      return OpTensor::Make(dtype, test::InputsOf(dtype, layout.size, layout.size + 1));
    };
    items.push_back({"sum", tensor(DataType::kFloat32)});
    items.back().tensor.requests[1].shape = {1, layout.size + 1};
    items.push_back({"sum", tensor(DataType::kFloat32)});
    items.push_back({"alltoall", tensor(DataType::kInt32)});
    items.push_back({"topk:count=1", tensor(DataType::kInt32)});
    items.push_back({"broadcast:root=1", tensor(DataType::kInt64)});
    test::RunJob(layout, items);
    std::string others = "0";
    for (int rank = 2; rank < layout.size; ++rank) others += ", " + std::to_string(rank);
    others = layout.size == 2 ? "rank [0] has" : "ranks [" + others + "] have";
    const std::string sentences[] = {
        "Mismatched ALLREDUCE tensor shapes for tensor 't0': " + others + " shape [" + rows +
            "], rank [1] has shape [1, " + rows + "].",
        "",
        "alltoall of tensor 't2' on rank [0]: splits not provided, but the first dimension, " +
            rows + ", is not an even multiple of the number of ranks, " + size + ".",
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
