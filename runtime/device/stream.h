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

  // The stream it was recorded on, and its place among the events of its GPU: of two on one stream
  // the later one has the larger number.
  void* stream = nullptr;
  uint64_t number = 0;
};
using SharedEvent = std::shared_ptr<Event>;

class Stream {
 public:
  virtual ~Stream() = default;       // waits for what was enqueued
  virtual void* native() const = 0;  // the cudaStream_t
  virtual Result<SharedEvent> Record() = 0;

  // Between two places of this device or pinned host memory, in any direction.
  virtual Status Copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
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
  // CombineAll, in one pass.
  virtual Status Combine(DataType dtype, std::span<const Pair> pairs) = 0;
  // MixInto, of at most kMostInputs.
  virtual Status Mix(DataType dtype, std::span<const double> weights,
                     std::span<const std::byte* const> inputs, std::byte* out, int64_t count) = 0;
};

}  // namespace horon
