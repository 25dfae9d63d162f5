// Ops on whole runtimes: every dtype and size, one to five ranks, with and without streaming, one
// node and several, against serial references in double. moving_test.cc has those that only move
// bytes.
#include <string>

#include "test/support/catch.h"
#include "test/support/job.h"

namespace horon {
namespace {

using test::Bytes;
using test::Item;
using test::kLayouts;
using test::Layout;
using test::Near;
using test::OpOutput;
using test::OpTensor;
using test::Values;

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
    INFO(test::Describe(layout));
    std::vector<Item> items;
    std::vector<Values> references;
    for (const Kind& kind : kKinds) {
      for (const DataType dtype : test::kAllTypes) {
        for (const int64_t count : test::kCounts) {
          // The scale factors alternate; where a scaled one means nothing it stays unscaled.
          const double postscale =
              items.size() % 3 == 0 && Supports(kind.kind, dtype, true) ? 0.5 : 1.0;
          if (!Supports(kind.kind, dtype, kind.average || postscale != 1.0)) continue;
          const auto inputs = test::InputsOf(dtype, layout.size, count);
          items.push_back({kind.op, OpTensor::Make(dtype, inputs).Scaled(1.0, postscale)});
          references.push_back(test::Reduced(kind.kind, dtype, inputs, 1.0,
                                             kind.average ? postscale / layout.size : postscale));
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

TEST_CASE("reduce_scatter and barrier", "[conformance]") {
  for (const Layout& layout : kLayouts) {
    INFO(test::Describe(layout));
    std::vector<Item> items;
    std::vector<Values> references;
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t count : test::kCounts) {
        const bool average = items.size() % 2 == 1 && dtype != DataType::kBool;
        const auto inputs = test::InputsOf(dtype, layout.size, count);
        items.push_back({average ? "reduce_scatter:op=average" : "reduce_scatter",
                         OpTensor::Make(dtype, inputs)});
        references.push_back(
            test::Reduced(ReduceKind::kSum, dtype, inputs, 1.0, average ? 1.0 / layout.size : 1.0));
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

TEST_CASE("staged proofs: dissemination and top-k", "[conformance]") {
  for (const Layout& layout : kLayouts) {
    INFO(test::Describe(layout));
    std::vector<Item> items;
    for (const DataType dtype :
         {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const int64_t count : test::kCounts) {
        for (const char* op :
             {"dissemination", "dissemination:hierarchical=1", "topk:ratio=1", "topk:ratio=0.25"}) {
          items.push_back({op, OpTensor::Make(dtype, test::InputsOf(dtype, layout.size, count))});
        }
      }
    }
    test::RunJob(layout, items);
    for (const Item& item : items) {
      REQUIRE(test::FailureOf(item) == "");
      const DataType dtype = item.tensor.requests[0].dtype;
      std::vector<Values> before, after;
      for (const Bytes& input : item.tensor.inputs) before.push_back(test::Decode(dtype, input));
      for (const OpOutput& output : item.outputs)
        after.push_back(test::Decode(dtype, output.bytes));
      const Values mean = test::Reduced(ReduceKind::kSum, dtype, before, 1.0, 1.0 / layout.size);
      INFO(item.op << " of " << NameOf(dtype) << " x " << mean.size());
      if (item.op.starts_with("topk")) REQUIRE(test::SameBitsEverywhere(item));
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
    test::RunJob(layout, items);
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
