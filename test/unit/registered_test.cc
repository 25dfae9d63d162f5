// Registered tensors through the C API, in a job of one rank.
#include <algorithm>
#include <string>
#include <vector>

#include "runtime/include/horon/horon.h"
#include "test/support/catch.h"

namespace {

// The shape is `count`, which must live as long as the request.
horon_request RequestOf(const char* name, const int64_t& count, const char* op) {
  horon_request request = {};
  request.struct_bytes = sizeof(request);
  request.name = name;
  request.op = op;
  request.dtype = HORON_FLOAT32;
  request.device = -1;
  request.shape = &count;
  request.ndim = 1;
  request.prescale = 2;
  return request;
}

horon_tensor* Register(const char* name, int64_t count, const char* op = "sum") {
  const horon_request request = RequestOf(name, count, op);
  horon_tensor* tensor = nullptr;
  REQUIRE(horon_register(&request, &tensor) == HORON_OK);
  return tensor;
}

void StartAndCheck(horon_tensor* tensor, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count), 3.0f), result(values);
  horon_work* work = nullptr;
  REQUIRE(horon_start(tensor, values.data(), result.data(), 1, &work) == HORON_OK);
  REQUIRE(horon_work_wait(work, -1) == HORON_OK);
  horon_work_release(work);
  CHECK(values.back() == 3.0f);
  CHECK(result.back() == 6.0f);
}

TEST_CASE("a registered tensor is started again and again, also in the next job") {
  horon_tensor* const tensor = Register("registered", 5);
  horon_work* work = nullptr;
  float some[5] = {};
  CHECK(horon_start(tensor, some, some, 0, &work) == HORON_ABORTED);  // before init
  for (int job = 0; job < 2; ++job) {
    REQUIRE(horon_init() == HORON_OK);
    for (int i = 0; i < 3; ++i) StartAndCheck(tensor, 5);
    CHECK(horon_start(tensor, nullptr, some, 0, &work) == HORON_INVALID_ARGUMENT);
    CHECK(std::string(horon_last_error()).find("'registered': input is null") != std::string::npos);
    horon_shutdown();
  }
  horon_tensor_release(tensor);
  horon_tensor_release(nullptr);
}

TEST_CASE("many registered tensors share a work; none is started if one cannot be") {
  REQUIRE(horon_init() == HORON_OK);
  std::vector<horon_tensor*> tensors;
  std::vector<std::vector<float>> values(100, std::vector<float>(8, 1.0f));
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (size_t i = 0; i < values.size(); ++i) {
    tensors.push_back(Register(("many." + std::to_string(i)).c_str(), 8));
    inputs.push_back(values[i].data());
    outputs.push_back(values[i].data());
  }
  horon_work* work = nullptr;
  std::vector<horon_tensor*> twice = tensors;
  twice[99] = tensors[0];
  CHECK(horon_start_all(twice.data(), inputs.data(), outputs.data(), 100, 0, &work) ==
        HORON_INVALID_ARGUMENT);
  CHECK(horon_start_all(tensors.data(), inputs.data(), outputs.data(), 0, 0, &work) ==
        HORON_INVALID_ARGUMENT);
  REQUIRE(horon_start_all(tensors.data(), inputs.data(), outputs.data(), 100, 0, &work) ==
          HORON_OK);
  REQUIRE(horon_work_wait(work, -1) == HORON_OK);
  horon_work_release(work);
  for (const auto& v : values) REQUIRE(v[7] == 2.0f);
  horon_shutdown();
  for (horon_tensor* tensor : tensors) horon_tensor_release(tensor);
}

TEST_CASE("two different tensors of one name are refused in one call, and harm no later one") {
  REQUIRE(horon_init() == HORON_OK);
  const int64_t counts[] = {5, 6};
  float values[6] = {};
  const void* const inputs[] = {values, values};
  void* const outputs[] = {values, values};
  horon_request requests[] = {RequestOf("twin", counts[0], "sum"),
                              RequestOf("twin", counts[1], "sum")};
  for (horon_request& request : requests) request.input = request.output = values;
  horon_work* work = nullptr;
  const auto refused = [&](int code) {
    CHECK(code == HORON_INVALID_ARGUMENT);
    CHECK(std::string(horon_last_error()) ==
          "two tensors of one call are named 'twin': give one of them another name");
  };
  refused(horon_submit_group(requests, 2, "twins", &work));
  horon_tensor* group[2];
  REQUIRE(horon_register_group(requests, 2, "twins", group) == HORON_OK);
  refused(horon_start_all(group, inputs, outputs, 2, 0, &work));
  horon_tensor* const lone[] = {Register("twin", 5), Register("twin", 6)};
  refused(horon_start_all(lone, inputs, outputs, 2, 0, &work));
  StartAndCheck(lone[0], 5);
  StartAndCheck(lone[1], 6);
  horon_shutdown();
  for (horon_tensor* tensor : {group[0], group[1], lone[0], lone[1]}) horon_tensor_release(tensor);
}

TEST_CASE("registered tensors join a work one by one; one that is refused harms no other") {
  REQUIRE(horon_init() == HORON_OK);
  float values[3][8];
  for (auto& row : values) std::fill(std::begin(row), std::end(row), 1.0f);
  horon_tensor* tensors[3];
  for (int i = 0; i < 3; ++i) tensors[i] = Register(("joins." + std::to_string(i)).c_str(), 8);
  for (int turn = 0; turn < 2; ++turn) {
    horon_work* work = nullptr;
    CHECK(horon_start_into(tensors[0], values[0], nullptr, &work) == HORON_INVALID_ARGUMENT);
    CHECK(work == nullptr);
    for (int i = 0; i < 3; ++i) {
      CHECK(horon_start_into(tensors[i], nullptr, values[i], &work) == HORON_INVALID_ARGUMENT);
      REQUIRE(horon_start_into(tensors[i], values[i], values[i], &work) == HORON_OK);
    }
    CHECK(horon_work_wait(work, 1) == HORON_WAIT_TIMEOUT);
    horon_work_close(work);
    REQUIRE(horon_work_wait(work, -1) == HORON_OK);
    CHECK(horon_work_output(work, 0) == nullptr);
    horon_work_close(work);
    CHECK(horon_start_into(tensors[0], values[0], values[0], &work) == HORON_INVALID_ARGUMENT);
    horon_work_release(work);
  }
  for (const auto& row : values) CHECK(row[7] == 4.0f);
  horon_work* lone = nullptr;
  REQUIRE(horon_start(tensors[0], values[0], values[0], 1, &lone) == HORON_OK);
  CHECK(horon_start_into(tensors[1], values[1], values[1], &lone) == HORON_INVALID_ARGUMENT);
  horon_work_close(lone);
  REQUIRE(horon_work_wait(lone, -1) == HORON_OK);
  horon_work_release(lone);
  for (horon_tensor* tensor : tensors) horon_tensor_release(tensor);
  horon_shutdown();
}

TEST_CASE("no tensor joins a work with an op that makes its own output, or after the close") {
  REQUIRE(horon_init() == HORON_OK);
  float values[4] = {1, 1, 1, 1}, result[4] = {};
  horon_work* work = nullptr;
  for (const char* op : {"allgather", "alltoall", "reduce_scatter", "neighbor_allgather"}) {
    INFO(op);
    horon_tensor* const tensor = Register((std::string("own.") + op).c_str(), 4, op);
    CHECK(horon_start_into(tensor, values, result, &work) == HORON_INVALID_ARGUMENT);
    CHECK(std::string(horon_last_error()).find(op) != std::string::npos);
    CHECK(work == nullptr);
    horon_tensor_release(tensor);
  }
  std::vector<horon_tensor*> tensors;
  for (const char* op : {"sum", "adasum", "topk:ratio=1"}) {
    INFO(op);
    tensors.push_back(Register((std::string("given.") + op).c_str(), 1, op));
    const size_t i = tensors.size() - 1;
    const int code = horon_start_into(tensors[i], &values[i], &result[i], &work);
    INFO(horon_last_error());
    REQUIRE(code == HORON_OK);
  }
  horon_tensor* const late = Register("late", 4);
  horon_work_close(work);
  CHECK(horon_start_into(late, values, values, &work) == HORON_INVALID_ARGUMENT);
  CHECK(horon_work_wait(work, -1) == HORON_OK);
  for (int i = 0; i < 3; ++i) CHECK(result[i] == 2.0f);
  horon_work_release(work);
  for (horon_tensor* tensor : tensors) horon_tensor_release(tensor);
  horon_tensor_release(late);
  horon_shutdown();
}

TEST_CASE("no tensor joins a work of an earlier job") {
  float values[2] = {1, 1};
  horon_tensor* const tensors[2] = {Register("life.0", 1), Register("life.1", 1)};
  REQUIRE(horon_init() == HORON_OK);
  horon_work* old = nullptr;
  REQUIRE(horon_start_into(tensors[0], &values[0], &values[0], &old) == HORON_OK);
  horon_shutdown();
  CHECK(horon_start_into(tensors[1], &values[1], &values[1], &old) == HORON_ABORTED);
  REQUIRE(horon_init() == HORON_OK);
  CHECK(horon_start_into(tensors[1], &values[1], &values[1], &old) == HORON_ABORTED);
  horon_work* work = nullptr;
  REQUIRE(horon_start_into(tensors[1], &values[1], &values[1], &work) == HORON_OK);
  for (horon_work* one : {old, work}) horon_work_close(one);
  CHECK(horon_work_done(old) == 1);
  CHECK(horon_work_wait(work, -1) == HORON_OK);
  CHECK(values[1] == 2.0f);
  for (horon_work* one : {old, work}) horon_work_release(one);
  for (horon_tensor* tensor : tensors) horon_tensor_release(tensor);
  horon_shutdown();
}

TEST_CASE("a registered group is started as one, and refused whole") {
  REQUIRE(horon_init() == HORON_OK);
  const int64_t counts[2] = {4, 6};
  horon_request requests[2] = {RequestOf("group.0", counts[0], "sum"),
                               RequestOf("group.1", counts[1], "sum")};
  horon_tensor* tensors[2] = {};
  CHECK(horon_register_group(requests, 2, "", tensors) == HORON_INVALID_ARGUMENT);
  CHECK(horon_register_group(requests, 0, "group", tensors) == HORON_INVALID_ARGUMENT);
  requests[1].ndim = -1;
  CHECK(horon_register_group(requests, 2, "group", tensors) == HORON_INVALID_ARGUMENT);
  requests[1].ndim = 1;
  REQUIRE(horon_register_group(requests, 2, "group", tensors) == HORON_OK);
  float values[2][6] = {{1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}};
  void* places[2] = {values[0], values[1]};
  for (int turn = 0; turn < 3; ++turn) {
    horon_work* work = nullptr;
    REQUIRE(horon_start_all(tensors, places, places, 2, 1, &work) == HORON_OK);
    REQUIRE(horon_work_wait(work, -1) == HORON_OK);
    CHECK(*horon_work_output_shape(work, 1) == 6);
    horon_work_release(work);
  }
  CHECK(values[0][3] == 8.0f);
  CHECK(values[1][5] == 8.0f);
  for (horon_tensor* tensor : tensors) horon_tensor_release(tensor);
  horon_shutdown();
}

// What only the negotiation knows the size of: an allgather's rows, an alltoall's.
TEST_CASE("outputs that belong to the work live until its last reference goes") {
  REQUIRE(horon_init() == HORON_OK);
  const float rows[6] = {1, 2, 3, 4, 5, 6};
  const int64_t shape[2] = {3, 2}, splits[1] = {3};
  for (const char* op : {"allgather", "alltoall"}) {
    INFO(op);
    horon_request request = RequestOf("rows", shape[0], op);
    request.shape = shape;
    request.ndim = 2;
    request.prescale = 1;
    request.input = rows;
    if (std::string(op) == "alltoall") {
      request.splits = splits;
      request.splits_count = 1;
    }
    horon_work* work = nullptr;
    REQUIRE(horon_run(&request, &work) == HORON_OK);
    horon_work_retain(work);
    horon_work_release(work);
    REQUIRE(horon_work_output_ndim(work, 0) == 2);
    CHECK(horon_work_output_shape(work, 0)[0] == 3);
    CHECK(horon_work_output_shape(work, 0)[1] == 2);
    const auto* const output = static_cast<const float*>(horon_work_output(work, 0));
    REQUIRE(output != nullptr);
    CHECK(output != rows);
    CHECK(std::vector<float>(output, output + 6) == std::vector<float>(rows, rows + 6));
    int count = 0;
    const int64_t* const received = horon_work_received_splits(work, 0, &count);
    REQUIRE(count == 1);
    CHECK(*received == 3);
    CHECK(horon_work_output(work, 1) == nullptr);
    CHECK(horon_work_output_ndim(work, 1) < 0);
    horon_work_release(work);
  }
  horon_shutdown();
}

TEST_CASE("a registered tensor with an op that is not there says so when it is started") {
  REQUIRE(horon_init() == HORON_OK);
  horon_tensor* const tensor = Register("odd", 1, "nonsense");
  float value = 1;
  horon_work* work = nullptr;
  CHECK(horon_start(tensor, &value, &value, 0, &work) == HORON_INVALID_ARGUMENT);
  CHECK(std::string(horon_last_error()).find("nonsense") != std::string::npos);
  horon_tensor_release(tensor);
  horon_shutdown();
}

}  // namespace
