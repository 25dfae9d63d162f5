// Tensors of a GPU through the C API on a machine that has none, or in a build without CUDA.
#include <dlfcn.h>

#include <string>

#include "runtime/include/horon/horon.h"
#include "test/support/catch.h"

namespace {

TEST_CASE("a tensor of a GPU that is not there is refused with its name, and the job goes on") {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    WARN("skipped: this machine has an NVIDIA driver");
    return;
  }
  REQUIRE(horon_init() == HORON_OK);
  const int64_t count = 1;
  float value = 2;
  horon_request request = {};
  request.struct_bytes = sizeof(request);
  request.name = "on a gpu";
  request.op = "sum";
  request.dtype = HORON_FLOAT32;
  request.shape = &count;
  request.ndim = 1;
  request.input = request.output = &value;
  horon_work* work = nullptr;
  REQUIRE(horon_submit(&request, &work) == HORON_UNSUPPORTED);
  const std::string said = horon_last_error();
  REQUIRE(said.find("tensor 'on a gpu': this ") == 0);
  const bool built = horon_cuda_built() == 1;
  REQUIRE(said.find(built ? "no NVIDIA driver" : "no CUDA support") != std::string::npos);

  horon_window_spec spec = {};
  spec.struct_bytes = sizeof(spec);
  spec.name = "on a gpu";
  spec.dtype = HORON_FLOAT32;
  spec.shape = &count;
  spec.ndim = 1;
  spec.values = &value;
  horon_window* window = nullptr;
  REQUIRE(horon_window_create(&spec, &window) == HORON_UNSUPPORTED);
  REQUIRE(std::string(horon_last_error()).find("the window 'on a gpu': this ") == 0);

  request.device = -1;
  REQUIRE(horon_submit(&request, &work) == HORON_OK);
  REQUIRE(horon_work_wait(work, -1) == HORON_OK);
  REQUIRE(horon_work_settled(work) == 1);
  REQUIRE(horon_work_hold_back(work, nullptr) == HORON_OK);
  horon_work_release(work);
  REQUIRE(horon_shutdown() == HORON_OK);
}

TEST_CASE("what GPUs need is reported part by part, with the reason where it is missing") {
  std::string parts;
  horon_gpu_parts(
      [](const char* part, int version, const char* text, void* user) {
        *static_cast<std::string*>(user) += std::string(part) + (version > 0 ? "+ " : "- ");
        REQUIRE(*text != '\0');
      },
      &parts);
  for (const char* part : {"driver", "nccl", "cublas"})
    REQUIRE(parts.find(part) != std::string::npos);
}

}  // namespace
