// Gossip on whole runtimes: fused, in every float type, on one node and several, beside other
// buckets, against products of the graphs' matrices in double.
#include <cstring>
#include <span>
#include <string>

#include "ops/gossip/contraction.h"
#include "ops/gossip/spec.h"
#include "test/support/catch.h"
#include "test/support/job.h"

namespace horon {
namespace {

using test::Item;
using test::kFloats;
using test::OpTensor;
using test::Values;

// What a first call makes of the values, by rank.
std::vector<Values> FirstCall(const std::string& spec, const std::vector<Values>& values) {
  auto arguments = OpArguments::Parse(spec);
  REQUIRE(arguments.ok());
  const auto parsed = gossip::GraphSpec::Read(arguments.value());
  REQUIRE(parsed.ok());
  const auto graph = parsed.value().Make(static_cast<int>(values.size()));
  REQUIRE(graph.ok());
  const auto rounds = arguments.value().Integer("rounds", 1);
  REQUIRE(rounds.ok());
  const gossip::Matrix matrix = gossip::Product(graph.value(), 0, rounds.value());
  std::vector<Values> after(values.size(), Values(values[0].size()));
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = 0; j < values.size(); ++j) {
      for (size_t e = 0; e < after[i].size(); ++e)
        after[i][e] += matrix[i * values.size() + j] * values[j][e];
    }
  }
  return after;
}

// Everybody hears the next lower rank, with weights that both ends give.
void HearTheOneBefore(OpTensor& tensor) {
  const auto size = static_cast<int64_t>(tensor.requests.size());
  for (int64_t rank = 0; rank < size; ++rank) {
    Request& request = tensor.requests[static_cast<size_t>(rank)];
    request.splits = {rank, 1, (rank + size - 1) % size, (rank + 1) % size};
    request.weights = {0.25, 3, 0.25};
    if (size == 1) request.splits = {0, 0}, request.weights = {0.25};
  }
}

void Compare(const test::Layout& layout, std::span<const DataType> dtypes,
             std::span<const int64_t> counts) {
  std::vector<Item> items;
  std::vector<std::vector<Values>> wanted;
  for (const DataType dtype : dtypes) {
    for (const int64_t count : counts) {
      const auto inputs = test::InputsOf(dtype, layout.size, count);
      for (const char* op :
           {"gossip", "gossip:graph=ring", "gossip:graph=star,mixing=push",
            "gossip:graph=random_matching", "gossip:graph=random_matching,rounds=5",
            "gossip:graph=ring,rounds=3"}) {
        const bool rounds_once = SizeOf(dtype) > 2 || std::strstr(op, "rounds") == nullptr;
        if (!rounds_once) continue;  // 16 bits are rounded after each of them
        items.push_back({op, OpTensor::Make(dtype, inputs)});
        wanted.push_back(FirstCall(op, inputs));
      }
      items.push_back({"neighbor_allreduce", OpTensor::Make(dtype, inputs)});
      HearTheOneBefore(items.back().tensor);
      wanted.push_back(inputs);
      for (size_t i = 0; i < inputs.size(); ++i) {
        const Values& before = inputs[(i + inputs.size() - 1) % inputs.size()];
        for (size_t e = 0; e < inputs[i].size(); ++e)
          wanted.back()[i][e] =
              0.25 * inputs[i][e] + (inputs.size() > 1 ? 0.75 * before[e] : 0.0);
      }
    }
  }
  test::RunJob(layout, items);
  for (size_t i = 0; i < items.size(); ++i) {
    REQUIRE(test::FailureOf(items[i]) == "");
    for (size_t rank = 0; rank < wanted[i].size(); ++rank) {
      INFO(items[i].op << " of " << NameOf(items[i].dtype()) << " on rank " << rank);
      REQUIRE(test::Near(items[i].dtype(),
                         test::Decode(items[i].dtype(), items[i].outputs[rank].bytes),
                         wanted[i][rank]));
    }
  }
}

TEST_CASE("gossip: rounds are products of matrices on whole runtimes", "[conformance][jobs]") {
  for (const test::Layout& layout : test::JobLayouts()) {
    INFO(test::Describe(layout));
    Compare(layout, kFloats, test::JobCounts());
  }
}

TEST_CASE("gossip of 32 ranks, a thread each", "[conformance]") {
  constexpr DataType kTypes[] = {DataType::kFloat32};
  constexpr int64_t kCounts[] = {3, 700};
  for (const int local_size : {0, 8}) {
    const test::Layout layout{32, local_size, /*lanes=*/true};
    INFO(test::Describe(layout));
    Compare(layout, kTypes, kCounts);
  }
}

}  // namespace
}  // namespace horon
