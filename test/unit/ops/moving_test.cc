// broadcast, allgather, alltoall, reduce_scatter, barrier.
#include <algorithm>
#include <numeric>

#include "test/support/catch.h"
#include "test/support/op_runner.h"

namespace horon {
namespace {

using test::Bytes;
using test::Near;
using test::OpRunner;
using test::OpTensor;
using test::Values;

void RequireOk(const test::OpResult& result) {
  INFO(result.status.message());
  REQUIRE(result.status.ok());
}

TEST_CASE("broadcast: every root, dtype and size, in place or not, fused", "[ops]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const DataType dtype : test::kAllTypes) {
      for (int root = 0; root < topology.size(); ++root) {
        OpRunner runner(topology, 3, /*in_place=*/root % 2 == 1);
        std::vector<OpTensor> bucket;
        for (int64_t count : {0L, 1L, 3L, 17L, 1000L}) {
          std::vector<Values> values;
          for (int rank = 0; rank < topology.size(); ++rank)
            values.push_back(test::SmallValues(dtype, rank, count));
          bucket.push_back(OpTensor::Make(dtype, values).Named("t" + std::to_string(count)));
        }
        const auto result = runner.Run("broadcast:root=" + std::to_string(root), bucket);
        RequireOk(result);
        for (size_t t = 0; t < bucket.size(); ++t) {
          for (int rank = 0; rank < topology.size(); ++rank) {
            REQUIRE(result.at(t, rank).bytes == bucket[t].inputs[static_cast<size_t>(root)]);
          }
        }
      }
    }
  }
}

TEST_CASE("broadcast of many tensors is one message per edge", "[ops]") {
  OpRunner runner(Topology::OneNode(2));
  std::vector<OpTensor> bucket;
  for (int i = 0; i < 50; ++i) {
    bucket.push_back(
        OpTensor::Make(DataType::kFloat32, {{1, 2, 3}, {0, 0, 0}}).Named("t" + std::to_string(i)));
  }
  RequireOk(runner.Run("broadcast:root=0", bucket));
  REQUIRE(runner.world().net().messages_sent(0) == 1);
  REQUIRE(runner.world().net().messages_sent(1) == 0);
}

// Rank r brings `rows` of two columns that say who it is.
Values Rows(int rank, int64_t rows) {
  Values values;
  for (int64_t i = 0; i < 2 * rows; ++i)
    values.push_back(static_cast<double>((rank * 20 + i) % 100));
  return values;
}

TEST_CASE("allgather: ragged rows, every dtype, fused", "[ops]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const DataType dtype : test::kAllTypes) {
      OpRunner runner(topology, 3);
      std::vector<OpTensor> bucket;
      std::vector<Bytes> expected;
      std::vector<std::vector<int64_t>> rows_by_rank;
      for (int64_t tensor = 0; tensor < 3; ++tensor) {
        std::vector<Values> values;
        std::vector<Shape> shapes;
        Bytes joined;
        rows_by_rank.emplace_back();
        for (int rank = 0; rank < topology.size(); ++rank) {
          const int64_t rows =
              tensor == 1 ? 0 : (rank * 3 + tensor) % 4;  // tensor 1 has none at all
          values.push_back(Rows(rank, rows));
          shapes.push_back({rows, 2});
          rows_by_rank.back().push_back(rows);
          const Bytes encoded = test::Encode(dtype, values.back());
          joined.insert(joined.end(), encoded.begin(), encoded.end());
        }
        bucket.push_back(
            OpTensor::Make(dtype, values).Shaped(shapes).Named("t" + std::to_string(tensor)));
        expected.push_back(joined);
      }
      const auto result = runner.Run("allgather", bucket);
      RequireOk(result);
      for (size_t t = 0; t < bucket.size(); ++t) {
        const int64_t total =
            std::accumulate(rows_by_rank[t].begin(), rows_by_rank[t].end(), int64_t{0});
        for (int rank = 0; rank < topology.size(); ++rank) {
          REQUIRE(result.at(t, rank).bytes == expected[t]);
          REQUIRE(result.at(t, rank).shape == Shape{total, 2});
          REQUIRE(result.at(t, rank).received == rows_by_rank[t]);
        }
      }
    }
  }
}

TEST_CASE("alltoall with splits", "[ops]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const DataType dtype : test::kAllTypes) {
      const int size = topology.size();
      const auto rows_between = [](int from, int to) {
        return static_cast<int64_t>((from + 2 * to) % 3);
      };
      std::vector<Values> values;
      std::vector<Shape> shapes;
      std::vector<Values> expected(static_cast<size_t>(size));
      std::vector<std::vector<int64_t>> received(static_cast<size_t>(size));
      OpTensor tensor;
      std::vector<std::vector<int64_t>> splits;
      for (int from = 0; from < size; ++from) {
        splits.emplace_back();
        for (int to = 0; to < size; ++to) splits.back().push_back(rows_between(from, to));
        const int64_t rows =
            std::accumulate(splits.back().begin(), splits.back().end(), int64_t{0});
        values.push_back(Rows(from, rows + from % 2));  // an odd rank keeps a row
        shapes.push_back({rows + from % 2, 2});
        auto at = values.back().begin();
        for (int to = 0; to < size; ++to) {
          const auto end = at + 2 * rows_between(from, to);
          expected[static_cast<size_t>(to)].insert(expected[static_cast<size_t>(to)].end(), at,
                                                   end);
          received[static_cast<size_t>(to)].push_back(rows_between(from, to));
          at = end;
        }
      }
      tensor = OpTensor::Make(dtype, values).Shaped(shapes);
      for (size_t rank = 0; rank < splits.size(); ++rank)
        tensor.requests[rank].splits = splits[rank];
      OpRunner runner(topology, 3);
      const auto result = runner.Run("alltoall", {tensor});
      RequireOk(result);
      for (int rank = 0; rank < size; ++rank) {
        const auto& mine = expected[static_cast<size_t>(rank)];
        REQUIRE(result.at(0, rank).bytes == test::Encode(dtype, mine));
        REQUIRE(result.at(0, rank).shape == Shape{static_cast<int64_t>(mine.size() / 2), 2});
        REQUIRE(result.at(0, rank).received == received[static_cast<size_t>(rank)]);
      }
    }
  }
}

TEST_CASE("alltoall without splits cuts evenly", "[ops]") {
  OpRunner runner(Topology::OneNode(2));
  const auto result =
      runner.Run("alltoall", {OpTensor::Make(DataType::kInt32, {{1, 2, 3, 4}, {5, 6}})});
  RequireOk(result);
  REQUIRE(test::Decode(DataType::kInt32, result.at(0, 0).bytes) == Values{1, 2, 5});
  REQUIRE(test::Decode(DataType::kInt32, result.at(0, 1).bytes) == Values{3, 4, 6});
  REQUIRE(result.at(0, 1).received == std::vector<int64_t>{2, 1});
  const auto empty = runner.Run("alltoall", {OpTensor::Make(DataType::kInt32, {{}, {}})});
  RequireOk(empty);
  REQUIRE(empty.at(0, 0).shape == Shape{0});
}

void CheckReduceScatter(const Topology& topology, DataType dtype, bool average, int64_t rows,
                        int64_t columns, double prescale) {
  const int size = topology.size();
  if (!Supports(ReduceKind::kSum, dtype, average || prescale != 1.0)) return;
  std::vector<Values> values;
  for (int rank = 0; rank < size; ++rank)
    values.push_back(test::SmallValues(dtype, rank, rows * columns));
  OpRunner runner(topology, 3);
  const std::vector<Shape> shapes(static_cast<size_t>(size), Shape{rows, columns});
  const auto result =
      runner.Run(average ? "reduce_scatter:op=average" : "reduce_scatter",
                 {OpTensor::Make(dtype, values).Shaped(shapes).Scaled(prescale, 1.0)});
  INFO(NameOf(dtype) << " " << rows << " x " << columns << " on " << size);
  RequireOk(result);
  const Values reference =
      test::Reduced(ReduceKind::kSum, dtype, values, prescale, average ? 1.0 / size : 1.0);
  Values joined;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t mine = rows / size + (rank < rows % size ? 1 : 0);
    REQUIRE(result.at(0, rank).shape == Shape{mine, columns});
    const Values part = test::Decode(dtype, result.at(0, rank).bytes);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  REQUIRE(Near(dtype, joined, reference));
}

TEST_CASE("reduce_scatter: the first rows % size ranks get one more", "[ops]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const DataType dtype : test::kAllTypes) {
      for (const int64_t rows : {0, 1, 3, 17, 200}) {
        CheckReduceScatter(topology, dtype, false, rows, 5, 1.0);
        CheckReduceScatter(topology, dtype, true, rows, 5, 2.0);
      }
      CheckReduceScatter(topology, dtype, false, 7, 0, 1.0);
    }
  }
  CheckReduceScatter(Topology::OneNode(3), DataType::kFloat16, true, 400'001, 1, 1.0);
}

TEST_CASE("barrier and the empty bucket's ops on one rank", "[ops]") {
  for (const Topology& topology : test::TestTopologies()) {
    OpRunner runner(topology);
    OpTensor nothing =
        OpTensor::Make(DataType::kUInt8, std::vector<Values>(static_cast<size_t>(topology.size())));
    nothing.Shaped(std::vector<Shape>(static_cast<size_t>(topology.size())));  // shape [], count 0
    RequireOk(runner.Run("barrier", {nothing}));
    if (topology.size() > 1) REQUIRE(runner.world().net().messages_sent(0) > 0);
    REQUIRE(runner.world().net().bytes_sent(0) == 0);
  }
}

}  // namespace
}  // namespace horon
