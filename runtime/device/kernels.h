// Arithmetic on one device's memory. kernels_host.cc is the host's; CUDA's live beside it later.
//
// All counts are elements, 64-bit. Pointers need only the alignment of their dtype. Outputs may be
// one of the inputs (in place) but may not overlap one otherwise. fp16 and bf16 are computed in
// fp32 and rounded once, at the end. bool: sum and max are "or", product and min are "and". Called
// by the holder of the baton; stateless.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/tensor.h"

namespace horon {

enum class ReduceKind : uint8_t { kSum, kMin, kMax, kProduct };

// out[i] = scale * reduce(in[0][i], in[1][i], ...), added in exactly this order, left to right
// (fp32 for the 16-bit floats, the dtype itself otherwise), so that equal inputs give equal bits.
// `scale` applies to the result: in fp32 for fp16, bf16 and fp32, in double for fp64; for integers
// in double, truncated towards zero. scale == 1 costs nothing. bool ignores scale. NaN wins in min
// and max. inputs.size() >= 1. One input is a scaled copy. The result also goes to each of
// `copies`, while a cache has it, or a register; they may be inputs, too.
void ReduceInto(ReduceKind kind, DataType dtype, double scale,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                std::span<std::byte* const> copies = {});

// out[i] = scale * in[i], the same rules. In place allowed.
void ScaleInto(DataType dtype, double scale, const std::byte* in, std::byte* out, int64_t count);

// Whether `kind` with scaling means something for `dtype` (all pairs do today but scaled bool).
bool Supports(ReduceKind kind, DataType dtype, bool scaled);

// out[i] = a*x[i] + b*y[i], in fp32 (double for fp64, and where fp32 cannot hold a or b). Floating
// dtypes only. In place allowed. The result also goes to `copy` unless that is null, while a cache
// has it, or a register; it may be an input, too.
void CombineInto(DataType dtype, double a, const std::byte* x, double b, const std::byte* y,
                 std::byte* out, int64_t count, std::byte* copy = nullptr);

// A copy that does not overlap. From kPastCachesBytes on it goes past the caches, which would drop
// it before it is read.
inline constexpr int64_t kPastCachesBytes = 8 << 20;
void CopyInto(const std::byte* in, std::byte* out, int64_t bytes);
// Always past the caches, where the CPU can: what is overwritten is not fetched, and whole lines
// end up in memory. All threads that hear of its end see the bytes.
void CopyPastCaches(const std::byte* in, std::byte* out, int64_t bytes);

// Inner products of two vectors, in double.
struct Dots {
  double ab = 0, aa = 0, bb = 0;
};
inline constexpr int64_t kDotBlock = 1024;  // elements

// Adds a.b, a.a and b.b of `count` elements to *sum, in one pass over both. Summed in double, block
// after block of kDotBlock elements (of the 16-bit floats in fp32 inside a block, where it can hold
// their products, of which it adds 32 one by one, and then 8 such sums): cut at a multiple of
// kDotBlock, several calls give the bits of one. A NaN or Inf anywhere ends up in the sums.
// Floating dtypes only.
void AddDots(DataType dtype, const std::byte* a, const std::byte* b, int64_t count, Dots* sum);

// Widening and rounding between the floating dtypes and fp32: what staged ops compute in.
void ToFloat(DataType from, const std::byte* in, float* out, int64_t count);
void FromFloat(DataType to, const float* in, std::byte* out, int64_t count);

}  // namespace horon
