// A Stream on host memory that has done its work when a call returns. Used by the tests of what
// works through a stream, without a GPU and without anything at the same time (fake_gpu.h has
// that).
#pragma once

#include <cstring>

#include "runtime/device/stream.h"

namespace horon::test {

class HostStream final : public Stream {
 public:
  void* native() const override { return const_cast<HostStream*>(this); }
  Result<SharedEvent> Record() override { return Status::Unsupported("no events here"); }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
    return Status::Ok();
  }
  Status Zero(std::byte* to, int64_t bytes) override {
    if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
    return Status::Ok();
  }
  Status Move(DataType from, DataType to, double scale, std::span<const Piece> pieces) override {
    MoveAll(from, to, scale, pieces);
    return Status::Ok();
  }
  Status Reduce(ReduceKind kind, DataType dtype, double scale,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count) override {
    ReduceInto(kind, dtype, scale, inputs, out, count);
    return Status::Ok();
  }
  Status Dot(DataType dtype, std::span<const Pair> pairs, Dots* sums) override {
    DotAll(dtype, pairs, sums);
    return Status::Ok();
  }
  Status Weigh(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
               Coefficients* out) override {
    WeighAll(how, parts, rows, tensors, out);
    return Status::Ok();
  }
  Status Combine(DataType dtype, std::span<const Pair> pairs) override {
    CombineAll(dtype, pairs);
    return Status::Ok();
  }
  Status Mix(DataType dtype, std::span<const double> weights,
             std::span<const std::byte* const> inputs, std::byte* out, int64_t count) override {
    MixInto(dtype, weights, inputs, out, count);
    return Status::Ok();
  }
  Status Multiply(const MatrixProduct&) override { return Status::Unsupported("no cuBLAS here"); }
};

}  // namespace horon::test
