#include "runtime/device/cublas_pairs.h"

#include <algorithm>
#include <vector>

namespace horon {
namespace {

// Of a floating dtype.
CublasType TypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return kCublasF16;
    case DataType::kBFloat16:
      return kCublasBF16;
    case DataType::kFloat64:
      return kCublasF64;
    default:
      return kCublasF32;
  }
}

// What is added in, and what results and factors are given in.
DataType WideOf(DataType dtype) { return dtype == DataType::kFloat64 ? dtype : DataType::kFloat32; }

// A number of that type.
struct Wide {
  Wide(DataType dtype, double value) : in_double(value), in_float(static_cast<float>(value)) {
    at = dtype == DataType::kFloat64 ? static_cast<const void*>(&in_double) : &in_float;
  }
  Wide(const Wide&) = delete;
  Wide& operator=(const Wide&) = delete;
  double in_double;
  float in_float;
  const void* at;
};

constexpr int64_t kDotsOfPair = 3;

}  // namespace

Result<std::unique_ptr<CublasPairs>> CublasPairs::Make(const CublasLibrary& cublas,
                                                       Stream& stream) {
  if (!cublas.ok()) return Status::Unsupported("there is no cuBLAS: " + cublas.found.text);
  CublasHandle* handle = nullptr;
  HORON_TRY(cublas.Check(cublas.Create(&handle), "be started"));
  std::unique_ptr<CublasPairs> made(new CublasPairs(cublas, handle, stream));
  HORON_TRY(cublas.Check(cublas.SetStream(handle, stream.native()), "take a stream"));
  return made;
}

CublasPairs::~CublasPairs() { cublas_.Destroy(handle_); }

int64_t CublasPairs::RoomFor(std::span<const Pair> pairs) {
  return static_cast<int64_t>(pairs.size()) * kDotsOfPair * static_cast<int64_t>(sizeof(double));
}

Status CublasPairs::Point(CublasPointers pointers) {
  return cublas_.Check(cublas_.SetPointerMode(handle_, pointers), "take pointers");
}

Status CublasPairs::Dot(DataType dtype, std::span<const Pair> pairs, std::byte* room, Dots* sums) {
  const DataType wide = WideOf(dtype);
  const int64_t element = SizeOf(wide);
  const auto results = static_cast<int64_t>(pairs.size()) * kDotsOfPair;
  HORON_TRY(stream_.Zero(room, results * element));  // no call for what is empty
  std::byte* to = room;
  for (const Pair& pair : pairs) {
    const std::byte* const vectors[][2] = {{pair.x, pair.y}, {pair.x, pair.x}, {pair.y, pair.y}};
    for (const auto& [x, y] : vectors) {
      if (pair.count > 0) HORON_TRY(DotOne(dtype, x, y, pair.count, to));
      to += element;
    }
  }
  const Piece widened{room, reinterpret_cast<std::byte*>(sums), results};
  return stream_.Move(wide, DataType::kFloat64, 1.0, {&widened, 1});
}

Status CublasPairs::DotOne(DataType dtype, const std::byte* x, const std::byte* y, int64_t count,
                           std::byte* result) {
  const CublasType type = TypeOf(dtype), wide = TypeOf(WideOf(dtype));
  if (type == wide) {
    HORON_TRY(Point(kCublasDevicePointers));
    return cublas_.Check(cublas_.DotEx(handle_, count, x, type, 1, y, type, 1, result, wide, wide),
                         "multiply vectors");
  }
  const Wide one(WideOf(dtype), 1), none(WideOf(dtype), 0);
  HORON_TRY(Point(kCublasHostPointers));
  return cublas_.Check(cublas_.GemmEx(handle_, kCublasTransposed, kCublasAsIs, 1, 1, count, one.at,
                                      x, type, count, y, type, count, none.at, result, wide, 1,
                                      kCublasComputeF32, kCublasDefaultAlgorithm),
                       "multiply vectors");
}

Status CublasPairs::Combine(DataType dtype, std::span<const Pair> pairs, std::byte* room) {
  const DataType wide = WideOf(dtype);
  const int64_t element = SizeOf(wide);
  std::vector<Piece> factors;  // that the device knows, in the type that cuBLAS wants them in
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].by == nullptr) continue;
    factors.push_back({reinterpret_cast<const std::byte*>(pairs[i].by),
                       room + 2 * static_cast<int64_t>(i) * element, 2});
  }
  if (!factors.empty()) HORON_TRY(stream_.Move(DataType::kFloat64, wide, 1.0, factors));
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    if (pair.count == 0) continue;
    const Wide a(wide, pair.a), b(wide, pair.b);
    const std::byte* const own = room + 2 * static_cast<int64_t>(i) * element;
    const bool known = pair.by == nullptr;
    HORON_TRY(Point(known ? kCublasHostPointers : kCublasDevicePointers));
    HORON_TRY(CombineOne(dtype, pair, known ? a.at : own, known ? b.at : own + element));
  }
  return Status::Ok();
}

// One of the two is scaled where the result is to be, and the other one added to it.
Status CublasPairs::CombineOne(DataType dtype, const Pair& pair, const void* a, const void* b) {
  const CublasType type = TypeOf(dtype), wide = TypeOf(WideOf(dtype));
  const std::byte *scaled = pair.x, *added = pair.y;
  const void *scale = a, *weight = b;
  if (pair.out == pair.y) {
    std::swap(scaled, added);
    std::swap(scale, weight);
  }
  if (pair.out != scaled) HORON_TRY(stream_.Copy(pair.out, scaled, pair.count * SizeOf(dtype)));
  HORON_TRY(cublas_.Check(cublas_.ScalEx(handle_, pair.count, scale, wide, pair.out, type, 1, wide),
                          "scale a vector"));
  return cublas_.Check(
      cublas_.AxpyEx(handle_, pair.count, weight, wide, added, type, 1, pair.out, type, 1, wide),
      "add vectors");
}

Status CublasPairs::Multiply(const MatrixProduct& product) {
  if (!IsFloat(product.dtype))
    return Status::Unsupported("cuBLAS multiplies matrices of floating dtypes only");
  if (product.m == 0 || product.n == 0) return Status::Ok();
  const CublasType type = TypeOf(product.dtype);
  const bool in_double = product.dtype == DataType::kFloat64;
  const Wide one(product.dtype, 1), none(product.dtype, 0);
  HORON_TRY(Point(kCublasHostPointers));
  return cublas_.Check(
      cublas_.GemmEx(handle_, product.transposed ? kCublasTransposed : kCublasAsIs, kCublasAsIs,
                     product.m, product.n, product.k, one.at, product.a, type,
                     std::max<int64_t>(1, product.transposed ? product.k : product.m), product.b,
                     type, std::max<int64_t>(1, product.k), none.at, product.c, type, product.m,
                     in_double ? kCublasComputeF64 : kCublasComputeF32, kCublasDefaultAlgorithm),
      "multiply matrices");
}

}  // namespace horon
