// Whose GPU is whose, as far as NCCL minds: it takes no two ranks of one GPU into a communicator,
// unless they say that they are on different hosts (NCCL_HOSTID), or all members have an NCCL that
// can, 2.30 or newer, and ask for it (NCCL_MULTI_RANK_GPU_ENABLE).
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "runtime/device/gpu.h"

namespace horon {

// What a rank tells the others of itself. Travels as bytes.
struct GpuOwner {
  GpuIdentity gpu{};   // zeros: not known
  uint64_t host = 0;   // that NCCL is told to be on; 0: the one it finds
  int64_t shares = 0;  // 1: its NCCL is asked to share GPUs, and can
};

// `host` and `share` are the values of NCCL's two variables, null where they are not set;
// `version` is NCCL's number, such as 23007.
GpuOwner OwnerOf(const GpuIdentity& gpu, int version, const char* host, const char* share);

// The places of the first two members of a communicator that NCCL would refuse.
std::optional<std::pair<size_t, size_t>> TwoOfOneGpu(std::span<const GpuOwner> members);

}  // namespace horon
