// top-k with error feedback: what is chosen, what is kept, what the ranks get.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/compression/topk_code.h"
#include "test/support/catch.h"
#include "test/support/op_runner.h"

namespace horon {
namespace {

using test::Bytes;
using test::Near;
using test::OpRunner;
using test::OpTensor;
using test::Values;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<uint32_t> Chosen(const std::vector<float>& p, size_t k) {
  std::vector<uint32_t> order(p.size());
  topk::Select(p.data(), static_cast<int64_t>(p.size()), static_cast<int64_t>(k), order.data());
  order.resize(k);
  return order;
}

TEST_CASE("the largest magnitudes, ties to the lower index, NaN first", "[topk]") {
  REQUIRE(Chosen({1, -5, 3, 4}, 2) == std::vector<uint32_t>{1, 3});
  REQUIRE(Chosen({2, -2, 2, -2, 2}, 3) == std::vector<uint32_t>{0, 1, 2});
  REQUIRE(Chosen({0, 1, kInf, kNan, -kNan, 7}, 1) == std::vector<uint32_t>{3});
  REQUIRE(Chosen({0, 1, kInf, kNan, -kNan, 7}, 3) == std::vector<uint32_t>{2, 3, 4});
  REQUIRE(Chosen({3, 2, 1}, 3) == std::vector<uint32_t>{0, 1, 2});
  REQUIRE(Chosen({}, 0).empty());
  // Against a full sort.
  const Values fractions = test::Fractions(3, 10'000);
  const std::vector<float> p(fractions.begin(), fractions.end());
  std::vector<uint32_t> sorted(p.size());
  for (uint32_t i = 0; i < sorted.size(); ++i) sorted[i] = i;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](uint32_t a, uint32_t b) { return std::fabs(p[a]) > std::fabs(p[b]); });
  sorted.resize(100);
  std::sort(sorted.begin(), sorted.end());
  REQUIRE(Chosen(p, 100) == sorted);
}

TEST_CASE("residual + decoded = p, to the last bit", "[topk]") {
  for (const DataType values : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    const Values fractions = test::Fractions(5, 999);
    std::vector<float> p(fractions.begin(), fractions.end());
    p[17] = 1e30f;  // beyond fp16
    p[18] = std::numeric_limits<float>::max();
    p[19] = 3e-6f;  // a subnormal fp16
    const std::vector<float> before = p;
    const std::vector<uint32_t> chosen = Chosen(p, 333);
    const auto k = static_cast<int64_t>(chosen.size());
    Bytes message(static_cast<size_t>(topk::MessageBytes(k, values)));
    topk::Encode(p, chosen, values, message.data());
    std::vector<float> decoded(p.size());
    REQUIRE(topk::AddDecoded(message.data(), k, values, decoded.data(), 999).ok());
    for (size_t i = 0; i < p.size(); ++i) {
      REQUIRE(std::isfinite(decoded[i]));
      REQUIRE(static_cast<double>(decoded[i]) + static_cast<double>(p[i]) ==
              static_cast<double>(before[i]));
    }
    REQUIRE(std::count_if(decoded.begin(), decoded.end(), [](float d) { return d != 0; }) == 333);
  }
}

TEST_CASE("what is not finite is sent and forgotten", "[topk]") {
  std::vector<float> p{1, kNan, 2, -kInf};
  Bytes message(static_cast<size_t>(topk::MessageBytes(2, DataType::kFloat16)));
  topk::Encode(p, Chosen(p, 2), DataType::kFloat16, message.data());
  REQUIRE(p == std::vector<float>{1, 0, 2, 0});
  std::vector<float> decoded(4);
  REQUIRE(topk::AddDecoded(message.data(), 2, DataType::kFloat16, decoded.data(), 4).ok());
  REQUIRE(std::isnan(decoded[1]));
  REQUIRE(decoded[3] == -kInf);
}

TEST_CASE("what is not finite is forgotten, also where it is more than what is sent", "[topk]") {
  std::vector<float> p{kNan, 3, kInf, kNan, -kInf, 5};
  Bytes message(static_cast<size_t>(topk::MessageBytes(2, DataType::kFloat32)));
  topk::Encode(p, Chosen(p, 2), DataType::kFloat32, message.data());
  REQUIRE(p == std::vector<float>{0, 3, 0, 0, 0, 5});
}

TEST_CASE("a broken message is refused and touches nothing outside", "[topk]") {
  std::vector<float> p{5, 4, 3, 2};
  Bytes message(static_cast<size_t>(topk::MessageBytes(2, DataType::kFloat32)));
  topk::Encode(p, Chosen(p, 2), DataType::kFloat32, message.data());
  const auto with = [&](size_t word, uint32_t value) {
    Bytes broken = message;
    std::memcpy(broken.data() + 4 * word, &value, 4);
    std::vector<float> sum(4);
    return topk::AddDecoded(broken.data(), 2, DataType::kFloat32, sum.data(), 4).code();
  };
  REQUIRE(with(0, 2) == Code::kOk);
  REQUIRE(with(0, 3) == Code::kInternal);  // k
  REQUIRE(with(2, 4) == Code::kInternal);  // index out of range
  REQUIRE(with(2, 0xffffffffu) == Code::kInternal);
  REQUIRE(with(2, 0) == Code::kInternal);  // not ascending
}

TEST_CASE("golden message", "[topk]") {
  std::vector<float> p{0, -1, 0, 2};
  Bytes message(static_cast<size_t>(topk::MessageBytes(1, DataType::kFloat16)));
  topk::Encode(p, Chosen(p, 1), DataType::kFloat16, message.data());
  const uint8_t golden[] = {1, 0, 0, 0, 3, 0, 0, 0, 0x00, 0x40, 0, 0};
  REQUIRE(message.size() == sizeof golden);
  REQUIRE(std::memcmp(message.data(), golden, sizeof golden) == 0);
}

std::vector<Values> Start(int ranks, int64_t count) {
  std::vector<Values> values;
  for (int rank = 0; rank < ranks; ++rank) values.push_back(test::Fractions(rank + 1, count));
  return values;
}

TEST_CASE("ratio 1 is the plain average and the plain sum", "[topk]") {
  for (const Topology& topology : test::TestTopologies()) {
    for (const DataType dtype :
         {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const int64_t count : {0, 1, 3, 17, 1000, 50'000}) {
        OpRunner runner(topology, 2);
        const auto values = Start(topology.size(), count);
        std::vector<Values> stored;
        for (const Values& one : values)
          stored.push_back(test::Decode(dtype, test::Encode(dtype, one)));
        for (const bool average : {true, false}) {
          const auto result = runner.Run(average ? "topk:ratio=1" : "topk:ratio=1,op=sum",
                                         {OpTensor::Make(dtype, stored)});
          INFO(result.status.message());
          REQUIRE(result.status.ok());
          const double scale = average ? 1.0 / topology.size() : 1.0;
          const Values reference = test::Reduced(ReduceKind::kSum, dtype, stored, 1.0, scale);
          const DataType precision = dtype == DataType::kFloat64 ? DataType::kFloat32 : dtype;
          REQUIRE(Near(precision, test::Decode(dtype, result.at(0, 0).bytes), reference));
          for (int rank = 1; rank < topology.size(); ++rank) {
            REQUIRE(result.at(0, rank).bytes == result.at(0, 0).bytes);
          }
        }
      }
    }
  }
}

TEST_CASE("over time everything arrives: sum of outputs -> rounds times the input", "[topk]") {
  for (const char* op :
       {"topk:ratio=0.1", "topk:count=7,values=fp16", "topk:ratio=0.05,values=bf16"}) {
    OpRunner runner(Topology::Blocks(3, 2), 4);
    const auto values = Start(3, 100);
    const Values mean = test::Reduced(ReduceKind::kSum, DataType::kFloat32, values, 1.0, 1.0 / 3);
    Values arrived(100);
    constexpr int kSteps = 400;
    for (int step = 0; step < kSteps; ++step) {
      const auto result = runner.Run(op, {OpTensor::Make(DataType::kFloat32, values)});
      REQUIRE(result.status.ok());
      const Values output = test::Decode(DataType::kFloat32, result.at(0, 0).bytes);
      for (size_t i = 0; i < arrived.size(); ++i) arrived[i] += output[i];
    }
    // What is missing is the mean of the residuals, which do not grow with time: each element is at
    // most about n/k inputs behind.
    for (size_t i = 0; i < arrived.size(); ++i) {
      INFO(op << " element " << i);
      REQUIRE(std::fabs(arrived[i] - kSteps * mean[i]) < 60);
      REQUIRE(std::fabs(arrived[i] / kSteps - mean[i]) < 0.15);
    }
  }
}

TEST_CASE("one step by hand, two ranks", "[topk]") {
  OpRunner runner(Topology::OneNode(2));
  const auto step = [&](const std::vector<Values>& values) {
    const auto result =
        runner.Run("topk:count=1,op=sum", {OpTensor::Make(DataType::kFloat32, values)});
    REQUIRE(result.status.ok());
    REQUIRE(result.at(0, 0).bytes == result.at(0, 1).bytes);
    return test::Decode(DataType::kFloat32, result.at(0, 0).bytes);
  };
  REQUIRE(step({{4, 3, 0}, {0, 0, -1}}) == Values{4, 0, -1});
  REQUIRE(step({{1, 3, 0}, {0, 1, 0.5}}) == Values{0, 7, 0});  // rank 0 has kept 3
  REQUIRE(step({{0, 0, 0}, {0, 0, 0}}) == Values{1, 0, 0.5});  // what both still owed
  REQUIRE(step({{0, 0, 0}, {0, 0, 0}}) == Values{0, 0, 0});
}

TEST_CASE("scaling, and state per tensor", "[topk]") {
  OpRunner runner(Topology::OneNode(2), 1, /*in_place=*/true);
  const auto tensor = [](const char* name) {
    return OpTensor::Make(DataType::kFloat16, {{2, 1}, {2, 1}}).Named(name).Scaled(3, 0.5);
  };
  const auto first = runner.Run("topk:count=1", {tensor("a")});
  REQUIRE(test::Decode(DataType::kFloat16, first.at(0, 1).bytes) == Values{3, 0});
  // "a" owes 3 in its second element and sends 2 * 3 of either: the lower index of equals goes.
  const auto second = runner.Run("topk:count=1", {tensor("a"), tensor("b")});
  REQUIRE(test::Decode(DataType::kFloat16, second.at(0, 0).bytes) == Values{3, 0});
  REQUIRE(test::Decode(DataType::kFloat16, second.at(1, 0).bytes) == Values{3, 0});
  const auto third = runner.Run("topk:count=1", {tensor("a"), tensor("b")});
  REQUIRE(test::Decode(DataType::kFloat16, third.at(0, 0).bytes) == Values{0, 4.5});  // 3 * 3 / 2
  REQUIRE(test::Decode(DataType::kFloat16, third.at(1, 0).bytes) == Values{3, 0});
}

TEST_CASE("a tensor that changes its size starts without a residual", "[topk]") {
  OpRunner runner(Topology::OneNode(2));
  REQUIRE(runner.Run("topk:count=1,op=sum", {OpTensor::Make(DataType::kFloat32, {{4, 3}, {4, 3}})})
              .status.ok());
  const auto result = runner.Run("topk:count=1,op=sum",
                                 {OpTensor::Make(DataType::kFloat32, {{1, 0, 0}, {1, 0, 0}})});
  REQUIRE(result.status.ok());
  REQUIRE(test::Decode(DataType::kFloat32, result.at(0, 0).bytes) == Values{2, 0, 0});
}

TEST_CASE("a bucket is one message per peer, of the documented size", "[topk]") {
  OpRunner runner(Topology::OneNode(3));
  std::vector<OpTensor> bucket;
  for (const int64_t count : {1000, 10, 0}) {
    bucket.push_back(
        OpTensor::Make(DataType::kFloat32, Start(3, count)).Named("t" + std::to_string(count)));
  }
  REQUIRE(runner.Run("topk:ratio=0.015", bucket).status.ok());
  REQUIRE(runner.world().net().messages_sent(1) == 2);
  REQUIRE(runner.world().net().bytes_sent(1) == 2 * ((4 + 8 * 15) + (4 + 8 * 1) + 4));
}

}  // namespace
}  // namespace horon
