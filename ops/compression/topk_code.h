// The top-k code: which elements are sent, and how they lie in a message. Pure arithmetic on memory
// that the caller owns; used by topk.cc and its tests.
//
// Message of one tensor of n elements: u32 k, u32 indices[k] ascending, values[k] in fp32, fp16 or
// bf16; padded to 4 bytes. Little endian. Its size depends on n alone, so all ranks know it.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor.h"

namespace horon::topk {

int64_t MessageBytes(int64_t k, DataType values);

// Writes to `chosen`[0..k) the indices of the k largest |p|, ascending. Equal magnitudes: the lower
// index first. NaN counts as the largest. `order`: scratch for n numbers.
void Select(const float* p, int64_t n, int64_t k, uint32_t* order);

// Encodes the elements of p at `chosen` (k of them) into `message` and leaves in p what the others
// will not know: 0 where the value went out whole, the rounding error where it was narrowed. Finite
// values beyond the narrow type's range go out as its largest value. What is not finite is not
// remembered, whether it goes out or not: with it the others have lost this step anyway.
void Encode(std::span<float> p, std::span<const uint32_t> chosen, DataType values,
            std::byte* message);

// sum[index] += value for every pair in the message. kInternal if it is not a message of k elements
// out of n; nothing outside sum[0..n) is ever touched.
Status AddDecoded(const std::byte* message, int64_t k, DataType values, float* sum, int64_t n);

}  // namespace horon::topk
