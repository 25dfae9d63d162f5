// StagedValues: the values of a window whose tensor lies on a GPU, in pinned memory of the host,
// where orders work on them as on any others.
//
// An order takes the tensor in before it begins, behind what the framework's stream had been given
// by then, and gives it back when it is done, behind an event; orders take turns, so copies and
// what the host does between them follow one another. No thread waits for the device but who drops
// it, for what is enqueued. Made on the user's thread; then the holder of the baton's.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/device/gpu.h"

namespace horon {

class StagedValues {
 public:
  // `tensor` lies on the GPU, and is lent as long as this lives.
  static Result<std::shared_ptr<StagedValues>> Make(std::shared_ptr<Gpu> gpu, std::byte* tensor,
                                                    int64_t bytes);

  std::byte* values() const { return copy_.data(); }
  // Enqueues, behind `ready`, which may be null: values <- the memory at `from` on the GPU (null:
  // the tensor). The event is done when they are there, and all that was enqueued before is over.
  Result<SharedEvent> TakeIn(Event* ready, const std::byte* from = nullptr);
  // Enqueues: tensor <- values.
  Result<SharedEvent> GiveBack();
  // Memory of the host for a result that goes to `to` by the next SendOutput().
  Result<std::byte*> Output();
  Result<SharedEvent> SendOutput(std::byte* to);

  // Orders, in turn.
  uint64_t TakeTicket() { return next_ticket_++; }
  uint64_t serving() const { return serving_; }
  void Pass() { ++serving_; }

 private:
  StagedValues(std::shared_ptr<Gpu> gpu, std::byte* tensor, int64_t bytes);
  Result<SharedEvent> Copy(std::byte* to, const std::byte* from);

  std::shared_ptr<Gpu> gpu_;
  std::byte* tensor_;
  int64_t bytes_;
  std::shared_ptr<Pool> pinned_;
  Buffer copy_, output_;
  uint64_t next_ticket_ = 0, serving_ = 0;
  std::unique_ptr<Stream> stream_;  // last: waits for what uses the others
};

}  // namespace horon
