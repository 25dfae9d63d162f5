// broadcast, allgather and alltoall on whole runtimes, as in ops_test.cc.
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

TEST_CASE("broadcast", "[conformance][jobs]") {
  for (const Layout& layout : test::JobLayouts()) {
    INFO(test::Describe(layout));
    std::vector<Item> items;
    std::vector<size_t> roots;
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t count : test::JobCounts()) {
        roots.push_back(items.size() % static_cast<size_t>(layout.size));
        items.push_back({"broadcast:root=" + std::to_string(roots.back()),
                         OpTensor::Make(dtype, test::InputsOf(dtype, layout.size, count))});
      }
    }
    test::RunJob(layout, items);
    for (size_t i = 0; i < items.size(); ++i) {
      REQUIRE(test::FailureOf(items[i]) == "");
      for (const OpOutput& output : items[i].outputs)
        REQUIRE(output.bytes == items[i].tensor.inputs[roots[i]]);
    }
  }
}

TEST_CASE("allgather and alltoall", "[conformance][jobs]") {
  for (const Layout& layout : test::JobLayouts()) {
    INFO(test::Describe(layout));
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
    test::RunJob(layout, items);
    for (size_t i = 0; i < items.size(); ++i) {
      REQUIRE(test::FailureOf(items[i]) == "");
      for (size_t rank = 0; rank < size; ++rank) {
        if (expected[i][rank].empty()) continue;  // no memory behind it
        REQUIRE(items[i].outputs[rank].bytes == expected[i][rank]);
        REQUIRE(items[i].outputs[rank].received == received[i][rank]);
      }
    }
  }
}

}  // namespace
}  // namespace horon
