// Rows: what a tensor's first dimension counts. For the ops that cut or join tensors along it
// (allgather, alltoall, reduce_scatter), or only move them (broadcast). Pure.
#pragma once

#include <cstdint>

#include "runtime/base/tensor.h"

namespace horon {

// Of ops that move rows through a lane: what its rows are made of, and what a bucket has at least,
// because smaller ones do not wait for their turn in it.
inline constexpr int64_t kByte = 1, kLaneBytes = 256 << 10;

// Elements of one row. The shape has at least one dimension.
inline int64_t RowCount(const Shape& shape) {
  return CountOf(Shape(shape.begin() + 1, shape.end()));
}

// The same tensor with another number of rows.
inline Shape WithRows(Shape shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

}  // namespace horon
