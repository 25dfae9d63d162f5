// horon_bench_gpu: what test/bench/gpu_bench.py makes a table of. Without a GPU it says why, and
// ends with 77.
#include <cstring>

#include "test/bench/gpu/gpu_bench.h"

int main(int argc, char** argv) {
  using namespace horon;  // NOLINT: a program of few files
  const Config config = bench::Must(ReadConfig(), "configuration");  // HORON_CUBLAS_LIB, say
  const bool launches = argc == 2 && std::strcmp(argv[1], "launches") == 0;
  if (!launches && (argc != 2 || std::strcmp(argv[1], "kernels") != 0)) {
    std::fprintf(stderr, "usage: %s kernels|launches\n", argv[0]);
    return 2;
  }
  GpuPlugin plugin;
  const auto driver = plugin.Open(config);
  if (!driver.ok()) {
    std::printf("not measured: %s\n", driver.status().message().c_str());
    return 77;
  }
  const auto gpu = bench::Must(driver.value()->Open(0), "open GPU 0");
  const GpuLibraryPaths paths{config.nccl_lib, config.cublas_lib, config.python_prefix};
  bench::PrintText("device", "is", gpu->name());
  bench::PrintText("driver", "is", driver.value()->version());
  bench::PrintText("NCCL", "is", driver.value()->nccl().text);
  bench::PrintText("cuBLAS", "is", driver.value()->cublas().text);
  if (launches) {
    bench::MeasureLaunches(*driver.value(), *gpu, paths);
  } else {
    bench::MeasureKernels(*gpu, paths);
  }
  return 0;
}
