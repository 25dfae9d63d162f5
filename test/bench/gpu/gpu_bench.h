// The compiled part of test/bench/gpu_bench.py: a line of JSON for each thing that was measured.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/gpu_plugin.h"

namespace horon::bench {

// What cannot be measured ends the program: a table with holes that nobody explains is worse.
inline void Must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  std::exit(1);
}
inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
template <typename T>
T Must(Result<T> result, const char* what) {
  Must(result.status(), what);
  return std::move(result).value();
}

// Something in words.
inline void PrintText(const std::string& name, const char* key, const std::string& words) {
  std::string text;
  for (const char c : words) {
    if (c == '"' || c == '\\') text += '\\';
    text += c == '\n' ? ' ' : c;
  }
  std::printf("{\"name\": \"%s\", \"%s\": \"%s\"}\n", name.c_str(), key, text.c_str());
}
// What need not be there, and is not: why.
inline void PrintMissing(const std::string& name, const std::string& why) {
  PrintText(name, "missing", why);
}

// Near the memory's bandwidth, and in how many launches (kernels.cc).
void MeasureKernels(Gpu& gpu, const GpuLibraryPaths& paths);
// From a call to the device's part of it (launch.cc).
void MeasureLaunches(GpuDriver& driver, Gpu& gpu, const GpuLibraryPaths& paths);

}  // namespace horon::bench
