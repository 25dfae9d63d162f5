// FakeCuda: what a test holds of the CUDA plugin of fake GPUs (fake_cuda_plugin.cc), which is built
// as a libhoron_cuda.so of its own and opened as the real one is. So the whole way of a tensor of a
// GPU is there without a GPU: the C API or Python, the variables, the driver that is looked for.
//
// Functions in C, for Python's ctypes too; all of GPU 0. A stream is what a framework would hand
// over as its cudaStream_t, null the default one. Any thread.
#pragma once

#include <cstdint>

extern "C" {

struct FakeCuda {
  // Memory of the device, which the host cannot read. Never given back.
  void* (*memory)(int64_t bytes);
  void* (*stream)();  // lives to the end of the process
  // Enqueues a copy to the device of what the host has there now.
  void (*write)(void* stream, void* to, const void* from, int64_t bytes);
  // Enqueues a copy to the host, and waits for the stream. What the stream has not been ordered
  // after is complained of, and not copied.
  void (*read)(void* stream, void* to, const void* from, int64_t bytes);
  void (*hold)(void* stream);  // it begins nothing until it is released
  void (*release)(void* stream);
  void (*capture)(void* stream, int on);  // into a graph
  void (*lose)(const char* why);          // the device, for good
  // The first complaint since the last call, "" if there is none; valid until the next call.
  const char* (*complaint)();
};

// The plugin's symbol kFakeCudaSymbol.
using HoronFakeCudaFn = const FakeCuda*();
}

inline constexpr const char* kFakeCudaSymbol = "horon_fake_cuda";
// The version of the NCCL that the plugin is to have, as NCCL counts; no group can be joined, and
// the error tells the options that it was to have. Not set: none is found.
inline constexpr const char* kFakeNcclVariable = "FAKE_CUDA_NCCL";
