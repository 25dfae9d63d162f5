// Buckets of ragged tensors for the tests of the op adasum, and what came of them.
#pragma once

#include <string>
#include <vector>

#include "test/support/op_runner.h"
#include "test/unit/ops/adasum_reference.h"

namespace horon::test {

inline constexpr const char* kPaths[] = {"adasum", "adasum:algo=halving", "adasum:algo=doubling",
                                         "adasum:algo=tree"};
// Ragged: nothing, one, fewer than ranks, odd, more than a block of dots.
inline constexpr int64_t kRagged[] = {1, 5, 0, 33, 2500};

inline std::vector<Values> Gradients(DataType dtype, int ranks, int64_t count, unsigned seed) {
  std::vector<Values> by_rank;
  for (int rank = 0; rank < ranks; ++rank) by_rank.push_back(Gradient(dtype, rank, count, seed));
  return by_rank;
}

struct Bucket {
  std::vector<OpTensor> tensors;
  std::vector<std::vector<Values>> values;  // by tensor, by rank
};
inline Bucket RaggedBucket(DataType dtype, int ranks) {
  Bucket bucket;
  unsigned seed = 1;
  for (const int64_t count : kRagged) {
    bucket.values.push_back(Gradients(dtype, ranks, count, seed));
    bucket.tensors.push_back(
        OpTensor::Make(dtype, bucket.values.back()).Named("t" + std::to_string(seed++)));
  }
  return bucket;
}

inline Values Decoded(DataType dtype, const OpResult& result, size_t tensor, int rank) {
  return test::Decode(dtype, result.at(tensor, rank).bytes);
}

inline bool SameOnAll(const OpResult& result, size_t tensor, int ranks) {
  for (int rank = 1; rank < ranks; ++rank) {
    if (result.at(tensor, rank).bytes != result.at(tensor, 0).bytes) return false;
  }
  return true;
}

}  // namespace horon::test
