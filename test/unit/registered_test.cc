// Registered tensors through the C API, in a job of one rank.
#include <string>
#include <vector>

#include "runtime/include/horon/horon.h"
#include "test/support/catch.h"

namespace {

horon_tensor* Register(const char* name, int64_t count, const char* op = "sum") {
  horon_request request = {};
  request.struct_bytes = sizeof(request);
  request.name = name;
  request.op = op;
  request.dtype = HORON_FLOAT32;
  request.device = -1;
  request.shape = &count;
  request.ndim = 1;
  request.prescale = 2;
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
  CHECK(horon_start_all(twice.data(), inputs.data(), outputs.data(), 100, &work) ==
        HORON_INVALID_ARGUMENT);
  CHECK(horon_start_all(tensors.data(), inputs.data(), outputs.data(), 0, &work) ==
        HORON_INVALID_ARGUMENT);
  REQUIRE(horon_start_all(tensors.data(), inputs.data(), outputs.data(), 100, &work) == HORON_OK);
  REQUIRE(horon_work_wait(work, -1) == HORON_OK);
  horon_work_release(work);
  for (const auto& v : values) REQUIRE(v[7] == 2.0f);
  horon_shutdown();
  for (horon_tensor* tensor : tensors) horon_tensor_release(tensor);
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
