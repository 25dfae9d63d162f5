// Gpu: one accelerator as the runtime sees it: memory, streams, events, and the kernels of
// stream.h. Nothing in it waits for the device.
//
// CUDA's is in the plugin libhoron_cuda.so (gpu_cuda.cc); tests have one that works on host memory
// and checks the order of events (test/support/fake_gpu.h). Everything may be called on any thread,
// but a Stream, which belongs to the holder of the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/device/memory.h"
#include "runtime/device/stream.h"

namespace horon {

// Of one GPU in the world.
using GpuIdentity = std::array<std::byte, 16>;

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual Device device() const = 0;
  virtual std::string name() const = 0;  // "NVIDIA H200"
  virtual GpuIdentity identity() const = 0;
  // For pools: the device's own memory, and host memory that it reads and writes by itself.
  virtual std::unique_ptr<Memory> MakeMemory() = 0;
  virtual std::unique_ptr<Memory> MakePinnedMemory() = 0;
  // kUnsupported for cuBLAS's kernels where there is no cuBLAS: what to install.
  virtual Result<std::unique_ptr<Stream>> MakeStream(PairKernels pairs) = 0;
  // The framework's own stream, which outlives what is enqueued there: on the thread of the program
  // that uses it, alone. Null where that cannot be.
  virtual std::shared_ptr<Stream> Borrow(void* framework_stream) = 0;
  // A library (MPI) may use the device on this thread from now on, unless the thread is at work
  // with one already.
  virtual Status Attach() = 0;
  // An event after all that the framework has enqueued on its stream (a cudaStream_t) so far.
  // kUnsupported while that stream is captured into a graph.
  virtual Result<SharedEvent> Record(void* framework_stream) = 0;
  // The same on another thread than the one that has used the stream.
  virtual Result<SharedEvent> RecordOfAnyThread(void* framework_stream) = 0;
};

}  // namespace horon
