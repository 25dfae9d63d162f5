// Serial references in double, and tensors of every dtype as bytes. Pure; used by the tests of
// collectives, ops and whole runtimes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/device/kernels.h"

namespace horon::test {

using Bytes = std::vector<std::byte>;
using Values = std::vector<double>;

inline constexpr DataType kAllTypes[] = {
    DataType::kUInt8,   DataType::kInt8,    DataType::kInt16,    DataType::kInt32,
    DataType::kInt64,   DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32,
    DataType::kFloat64, DataType::kBool};
inline constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32,
                                       DataType::kFloat64};

Bytes Encode(DataType dtype, const Values& values);
Values Decode(DataType dtype, std::span<const std::byte> bytes);

// Small whole numbers that differ from rank to rank and element to element; sums and products over
// six ranks are exact in every dtype. For bool 0 and 1.
Values SmallValues(DataType dtype, int rank, int64_t count);
// Numbers with fractions, as a 32-bit float holds them, between -1 and 1.
Values Fractions(int rank, int64_t count);

// scale * reduce(prescale * input of each rank), rounded as the kernels promise: integers are
// truncated after each scaling, bool means "or" and "and".
Values Reduced(ReduceKind kind, DataType dtype, const std::vector<Values>& by_rank, double prescale,
               double scale);
// How far a result may be from the reference, relative to max(1, |reference|). 0 for integers.
double Tolerance(DataType dtype);
bool Near(DataType dtype, const Values& result, const Values& reference);

}  // namespace horon::test
