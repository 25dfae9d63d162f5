// Rows: what a tensor's first dimension counts. For the ops that cut or join tensors along it
// (allgather, alltoall, reduce_scatter), or only move them (broadcast). Pure.
#pragma once

#include <cstdint>
#include <numeric>

#include "runtime/base/tensor.h"
#include "runtime/op/request.h"

namespace horon {

// Of ops that move rows through a lane: what its rows are made of, and what a bucket has at least,
// because smaller ones do not wait for their turn in it.
inline constexpr int64_t kByte = 1, kLaneBytes = 256 << 10;

// Elements of one row. The shape has at least one dimension.
inline int64_t RowCount(const Shape& shape) {
  return CountOf(Shape(shape.begin() + 1, shape.end()));
}

inline int64_t RowBytes(const Request& request) {
  return RowCount(request.shape) * SizeOf(request.dtype);
}

// Of all rows that were agreed on: what a gathered tensor weighs, the same everywhere.
inline int64_t GatheredBytes(const Request& request, const Agreement& agreed) {
  return std::accumulate(agreed.sizes.begin(), agreed.sizes.end(), int64_t{0}) * RowBytes(request);
}

// The same tensor with another number of rows.
inline Shape WithRows(Shape shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

}  // namespace horon
