#include <cmath>

#include "runtime/op/op.h"
#include "test/support/catch.h"
#include "test/support/op_runner.h"

namespace horon {
namespace {

using test::OpRunner;
using test::OpTensor;

// One rank each; every rank asks for a [2, 3] float32 tensor 'w'.
struct Ranks {
  explicit Ranks(size_t size) : requests(size) {
    for (Request& request : requests) {
      request.name = "w";
      request.op = "sum";
      request.shape = {2, 3};
    }
  }
  Request& operator[](size_t i) { return requests[i]; }
  std::vector<const Request*> pointers() const {
    std::vector<const Request*> all;
    for (const Request& request : requests) all.push_back(&request);
    return all;
  }
  std::vector<Request> requests;
};
const std::vector<int> kGlobal{4, 6, 9};  // global ranks of the set's members

std::string Common(const Ranks& ranks) { return CheckCommon(ranks.pointers(), kGlobal).message(); }

TEST_CASE("equal requests pass", "[check]") {
  const Ranks ranks(3);
  REQUIRE(CheckCommon(ranks.pointers(), kGlobal).ok());
  REQUIRE(CheckShapes(ranks.pointers(), kGlobal).ok());
  REQUIRE(CheckRows(ranks.pointers(), kGlobal).ok());
}

TEST_CASE("a mismatch names the tensor, the ranks on each side and the values", "[check]") {
  Ranks types(3);
  types[1].dtype = DataType::kFloat64;
  REQUIRE(Common(types) ==
          "Mismatched data types for tensor 'w': ranks [4, 9] have float32, rank [6] has float64.");

  Ranks devices(3);
  devices[0].device = {DeviceKind::kCuda, 1};
  REQUIRE(Common(devices) ==
          "Mismatched ALLREDUCE CPU/GPU device selection for tensor 'w': rank [4] has GPU, "
          "ranks [6, 9] have CPU.");

  Ranks scales(3);
  scales[2].postscale = 0.1;
  REQUIRE(Common(scales) ==
          "Mismatched prescale and/or postscale factors for tensor 'w': ranks [4, 6] have "
          "(1, 1), rank [9] has (1, 0.1).");

  Ranks rounds(3);
  rounds[0].round = 7;
  REQUIRE(Common(rounds) ==
          "Mismatched rounds for tensor 'w': rank [4] has round 7, ranks [6, 9] have round 0.");

  Ranks groups(3);
  groups[0].group = "g";
  groups[0].group_size = 2;
  REQUIRE(Common(groups) ==
          "Mismatched groups for tensor 'w': rank [4] has group 'g' of 2 tensors (their names "
          "hash to 0000000000000000), ranks [6, 9] have no group.");

  Ranks shapes(3);
  shapes[1].shape = {2, 4};
  shapes[2].shape = {};
  REQUIRE(CheckShapes(shapes.pointers(), kGlobal, "BROADCAST").message() ==
          "Mismatched BROADCAST tensor shapes for tensor 'w': rank [4] has shape [2, 3], rank [6] "
          "has shape "
          "[2, 4], rank [9] has shape [].");
}

TEST_CASE("close numbers are told apart", "[check]") {
  Ranks scales(2);
  scales[0].prescale = 0.1;
  scales[1].prescale = std::nextafter(0.1, 1.0);
  REQUIRE(CheckCommon(scales.pointers(), std::vector<int>{0, 1})
              .message()
              .find("rank [0] has (0.1, 1), rank [1] has (0.10000000000000002, 1).") !=
          std::string::npos);
}

TEST_CASE("rows may differ, all else of the shape may not", "[check]") {
  Ranks rows(3);
  rows[1].shape = {7, 3};
  rows[2].shape = {0, 3};
  REQUIRE(CheckRows(rows.pointers(), kGlobal).ok());
  rows[2].shape = {0, 4};
  REQUIRE(CheckRows(rows.pointers(), kGlobal).message() ==
          "Mismatched ALLGATHER tensor shapes for tensor 'w': ranks [4, 6] have shape [*, 3], rank "
          "[9] has "
          "shape [*, 4].");
  rows[2].shape = {0, 3, 1};
  REQUIRE_FALSE(CheckRows(rows.pointers(), kGlobal).ok());
  rows[2].shape = {};
  REQUIRE(CheckRows(rows.pointers(), kGlobal, "ALLTOALL").message() ==
          "Mismatched ALLTOALL tensor shapes for tensor 'w': rank [9] has a scalar, but the tensor "
          "needs a "
          "first dimension.");
}

TEST_CASE("many sides still make one sentence", "[check]") {
  Ranks many(40);
  std::vector<int> global;
  for (int i = 0; i < 40; ++i) {
    many[static_cast<size_t>(i)].shape = {i};
    global.push_back(i);
  }
  const std::string text = CheckShapes(many.pointers(), global).message();
  REQUIRE(text.size() < 600);
  REQUIRE(text.find("and 32 more values on other ranks.") != std::string::npos);
}

OpTensor Two(DataType dtype = DataType::kFloat32) {
  return OpTensor::Make(dtype, {{1, 2}, {3, 4}});
}

TEST_CASE("every op says what it cannot do", "[check]") {
  OpRunner runner(Topology::OneNode(2));
  const auto check = [&](const std::string& op, const OpTensor& tensor) {
    return runner.Check(op, tensor).message();
  };
  REQUIRE(check("average", Two(DataType::kBool)) ==
          "Op 'average' with scaling means nothing for tensor 'w' of bool.");
  REQUIRE(check("sum", Two(DataType::kBool)).empty());
  REQUIRE(check("reduce_scatter:op=average", Two(DataType::kBool)) ==
          "Op 'reduce_scatter:op=average' means nothing for tensor 'w' of bool.");
  REQUIRE(check("dissemination", Two(DataType::kInt32)) ==
          "Op 'dissemination' needs a floating data type; tensor 'w' is int32.");
  REQUIRE(check("topk:count=1", Two(DataType::kInt8)) ==
          "Op 'topk:count=1' needs a floating data type; tensor 'w' is int8.");
  REQUIRE(check("broadcast:root=2", Two()) ==
          "Op 'broadcast:root=2' for tensor 'w': root rank 2 is not in the "
          "process set of ranks [0, 1].");
  for (const char* op : {"broadcast:root=0", "allgather", "alltoall"}) {
    REQUIRE(check(op, Two().Scaled(0.5, 1)) == "Op '" + std::string(op) +
                                                   "' does not scale; tensor 'w' asks for "
                                                   "prescale 0.5 and postscale 1.");
  }
  for (const char* op :
       {"sum", "min", "broadcast:root=0", "reduce_scatter", "dissemination", "topk:count=1"}) {
    INFO(op);
    REQUIRE(check(op, Two().Shaped({{2}, {1, 2}}))
                .find("tensor shapes for tensor 'w': rank [0] has shape") != std::string::npos);
  }
  REQUIRE_FALSE(
      check("reduce_scatter", OpTensor::Make(DataType::kFloat32, {{1}, {1}}).Shaped({{}, {}}))
          .empty());
}

TEST_CASE("alltoall judges each rank's splits", "[check]") {
  OpRunner runner(Topology::OneNode(2));
  const auto check = [&](std::vector<int64_t> splits) {
    OpTensor tensor = OpTensor::Make(DataType::kFloat32, {{1, 2, 3, 4}, {1, 2, 3}});
    tensor.requests[0].splits = {4, 0};
    tensor.requests[1].splits = std::move(splits);
    return runner.Check("alltoall", tensor).message();
  };
  REQUIRE(check({1, 2}).empty());
  REQUIRE(check({1, 1}).empty());  // the last row stays
  REQUIRE(check({}) ==
          "alltoall of tensor 'w' on rank [1]: splits not provided, but the first dimension, 3, is "
          "not an even multiple of the number of ranks, 2.");
  REQUIRE(check({3}) ==
          "alltoall of tensor 'w' on rank [1]: number of entries in splits, 1, does not equal the "
          "number of ranks, 2.");
  REQUIRE(check({4, -1}) ==
          "alltoall of tensor 'w' on rank [1]: the sum of splits [4, -1] is greater than the "
          "first dimension, 3.");
  REQUIRE(check({-1, 4}) ==
          "alltoall of tensor 'w' on rank [1]: splits [-1, 4] hold a negative number.");
  constexpr int64_t kHuge = int64_t{1} << 62;
  REQUIRE_FALSE(check({kHuge, kHuge}).empty());
}

}  // namespace
}  // namespace horon
