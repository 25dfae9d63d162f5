// Accumulator: a weighted sum of several vectors, added in the order of the calls; in fp32, for
// fp64 in fp64, rounded once at the end. Its input may change between two calls: so the slots of a
// window are read one after the other, each under its own lock. Holder of the baton.
#pragma once

#include <cstdint>

#include "runtime/device/kernels.h"
#include "runtime/device/memory.h"

namespace horon {

class Accumulator {
 public:
  // Floating dtypes only.
  static Result<Accumulator> Make(Pool& pool, DataType dtype, int64_t count);

  void Begin(double weight, const std::byte* x);  // sum = weight * x
  void Add(double weight, const std::byte* x);    // sum += weight * x
  // sum += weight * (x - y): equal vectors change nothing, and swapping them negates it exactly.
  void AddDifference(double weight, const std::byte* x, const std::byte* y);
  void Store(std::byte* out) const;

 private:
  Accumulator(Buffer sum, DataType dtype, int64_t count)
      : sum_(std::move(sum)), dtype_(dtype), count_(count) {}
  template <typename Step>
  void Each(const std::byte* x, const std::byte* y, Step step);

  Buffer sum_;
  DataType dtype_;
  int64_t count_;
};

}  // namespace horon
