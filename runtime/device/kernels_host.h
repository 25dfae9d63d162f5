// The host's kernels by instruction set: what kernels.h calls the best of, and tests compare.
//
// Stateless; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/device/kernels.h"

namespace horon {

enum class Isa : uint8_t { kPlain, kAvx2, kAvx512, kNeon };

// The functions of kernels.h, compiled for one instruction set.
struct HostKernels {
  void (*reduce)(ReduceKind kind, DataType dtype, double scale,
                 std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                 std::span<std::byte* const> copies);
  void (*combine)(DataType dtype, double a, const std::byte* x, double b, const std::byte* y,
                  std::byte* out, int64_t count, std::byte* copy);
  void (*dots)(DataType dtype, const std::byte* a, const std::byte* b, int64_t count, Dots* sum);
  void (*to_float)(DataType from, const std::byte* in, float* out, int64_t count);
  void (*from_float)(DataType to, const float* in, std::byte* out, int64_t count);
};

// Null when this build or this CPU has not got it. kPlain always exists.
const HostKernels* KernelsFor(Isa isa);

}  // namespace horon
