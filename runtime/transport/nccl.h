// NCCL behind gpu_group.h: which of its functions are called, in which order, and what is made of
// their answers. It knows no CUDA, so that tests run it over a table of functions of their own
// (test/support/fake_nccl.h); in production the CUDA plugin makes it. Holder of the baton.
#pragma once

#include <functional>
#include <memory>

#include "runtime/transport/gpu_group.h"
#include "runtime/transport/nccl_library.h"

namespace horon {

// Makes a device the thread's current one while what it returns lives: every call of a communicator
// happens so.
using EnterDevice = std::function<std::shared_ptr<void>(int index)>;

// The library outlives it.
std::unique_ptr<GpuNetwork> MakeNcclNetwork(const NcclLibrary& library, EnterDevice enter);

}  // namespace horon
