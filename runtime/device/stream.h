// Stream: work of a GPU in the order in which it was enqueued; Event: a point in it.
//
// A call enqueues and returns; a failure is kUnavailable (the device is lost) and ends the runtime.
// Memory named in a call is lent until an event recorded after it is done; tables (pieces, pairs,
// weights) are copied during the call. Arithmetic follows the rules of kernels.h and batch.h, to
// the bit where nothing else is said. Streams: holder of the baton; events: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/status.h"
#include "runtime/device/batch.h"

namespace horon {

class Event {
 public:
  virtual ~Event() = default;
  virtual Result<bool> Done() = 0;  // never blocks
  // What is enqueued on `stream` (a cudaStream_t) from now on starts after this point.
  virtual Status HoldBack(void* stream) = 0;

  // The stream it was recorded on (the framework's name of it), and whether that is one stream: not
  // where it is another one on each thread. When on its GPU's clock its recording began and was
  // over: of two on one stream the later one is known, unless two threads recorded them at once.
  void* stream = nullptr;
  bool one_stream = true;
  uint64_t begun = 0, over = 0;
};
using SharedEvent = std::shared_ptr<Event>;

// What does Dot and Combine: kernels that take a whole batch in one pass, with sums in double; or
// cuBLAS, tensor by tensor, with sums in fp32 (fp64: in double). Cublas may round twice where Fused
// rounds once.
enum class PairKernels : uint8_t { kFused, kCublas };

// c = a' * b, or a * b: matrices of `m` x `k` and `k` x `n` elements, column by column.
struct MatrixProduct {
  DataType dtype = DataType::kFloat32;
  bool transposed = false;  // a is k x m, and a' is what is multiplied
  int64_t m = 0, n = 0, k = 0;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* c = nullptr;
};

class Stream {
 public:
  virtual ~Stream() = default;       // waits for what was enqueued, if it is not the framework's
  virtual void* native() const = 0;  // the cudaStream_t
  virtual Result<SharedEvent> Record() = 0;

  // Between two places of this device or pinned host memory, in any direction.
  virtual Status Copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual Status Zero(std::byte* to, int64_t bytes) = 0;
  // MoveAll, one launch for some hundred pieces.
  virtual Status Move(DataType from, DataType to, double scale, std::span<const Piece> pieces) = 0;
  // ReduceInto, of at most kMostInputs.
  static constexpr size_t kMostInputs = 64;
  virtual Status Reduce(ReduceKind kind, DataType dtype, double scale,
                        std::span<const std::byte* const> inputs, std::byte* out,
                        int64_t count) = 0;
  // sums[i] = a.b, a.a and b.b of pair i, in double: the same in every run, but added in another
  // order than on the host. `sums` is memory of the device, or pinned.
  virtual Status Dot(DataType dtype, std::span<const Pair> pairs, Dots* sums) = 0;
  // WeighAll; all of it is memory of the device, or pinned.
  virtual Status Weigh(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
                       Coefficients* out) = 0;
  // CombineAll, in one pass.
  virtual Status Combine(DataType dtype, std::span<const Pair> pairs) = 0;
  // MixInto, of at most kMostInputs.
  virtual Status Mix(DataType dtype, std::span<const double> weights,
                     std::span<const std::byte* const> inputs, std::byte* out, int64_t count) = 0;
  // By cuBLAS, whatever the kernels of pairs: floating dtypes, sums in fp32 (fp64: in double).
  // kUnsupported where there is no cuBLAS.
  virtual Status Multiply(const MatrixProduct& product) = 0;
};

}  // namespace horon
