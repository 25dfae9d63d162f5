// main() of the tests of kernels: opens the plugin and GPU 0, and says what it found. Where there
// is no GPU nothing is tested, and it says why.
#include <cstdio>

#include "test/gpu/gpu_device.h"
#include "test/support/catch_runner.h"

int main(int argc, char** argv) {
  horon::GpuPlugin plugin;
  const auto config = horon::ReadConfig();  // HORON_CUBLAS_LIB, say
  const auto driver = plugin.Open(config.ok() ? config.value() : horon::Config{});
  if (!driver.ok()) {
    std::printf("SKIPPED: %s\n", driver.status().message().c_str());
    return 0;
  }
  const auto gpu = driver.value()->Open(0);
  if (!gpu.ok()) {
    std::printf("%s\n", gpu.status().message().c_str());
    return 1;
  }
  std::printf("%s, %s; %s; %s\n", gpu.value()->name().c_str(), driver.value()->version().c_str(),
              driver.value()->nccl().text.c_str(), driver.value()->cublas().text.c_str());
  horon::test::the_gpu = gpu.value();
  const int failures = horon::test::RunCatch({argv, static_cast<size_t>(argc)});
  horon::test::the_gpu.reset();
  return failures;
}
