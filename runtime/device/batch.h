// Arithmetic on batches of segments: what a GPU does in one launch. The functions are the host's
// way of doing the same, over kernels.h; they are what a GPU's results are compared with.
//
// Counts are elements. A segment may be moved or combined in place but may not overlap another one
// of its batch otherwise. Stateless; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/device/kernels.h"
#include "runtime/device/weigh.h"

namespace horon {

// A segment of a block begins where a GPU moves 16 bytes at once.
inline int64_t AlignedForGpus(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// A segment on its way into a fused buffer, or out of it.
struct Piece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t count = 0;
};

// Two segments of one tensor; Combine writes out = a*x + b*y. Where `by` is set, a and b are there
// when it begins: in memory that the device reads.
struct Pair {
  const std::byte* x = nullptr;
  const std::byte* y = nullptr;
  std::byte* out = nullptr;
  int64_t count = 0;
  double a = 1, b = 1;
  const Coefficients* by = nullptr;
};

// to = scale * from. Equal dtypes: as ScaleInto. Two floating dtypes: computed in fp32, or in
// double if one of them is fp64, and rounded once.
void MoveAll(DataType from, DataType to, double scale, std::span<const Piece> pieces);
// Whether MoveAll can.
bool CanMove(DataType from, DataType to);

// sums[i]: the inner products of pair i. Floating dtypes.
void DotAll(DataType dtype, std::span<const Pair> pairs, Dots* sums);
void CombineAll(DataType dtype, std::span<const Pair> pairs);
// Of each of `tensors` tensors, from `rows` rows of their dots: weigh.h.
void WeighAll(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
              Coefficients* out);

// out = weights[0] * inputs[0] + weights[1] * inputs[1] + ..., in fp32 (fp64: in double), each
// product rounded, added left to right, the 16-bit floats rounded once. Floating dtypes; in place
// allowed.
void MixInto(DataType dtype, std::span<const double> weights,
             std::span<const std::byte* const> inputs, std::byte* out, int64_t count);

}  // namespace horon
