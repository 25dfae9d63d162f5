// NCCL behind gpu_group.h. Part of the CUDA plugin; holder of the baton.
#pragma once

#include <memory>

#include "runtime/transport/gpu_group.h"
#include "runtime/transport/nccl_library.h"

namespace horon {

// The library outlives it.
std::unique_ptr<GpuNetwork> MakeNcclNetwork(const NcclLibrary& library);

}  // namespace horon
