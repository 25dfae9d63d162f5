// WindowMemory: the slots of one rank's window, in memory that the other ranks of its node map:
// slot 0 is what the rank publishes, the others what its in-neighbors deliver, in ascending order.
//
// A rank that cannot map it sends messages instead. Any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/shared_memory.h"
#include "runtime/base/status.h"
#include "runtime/peer/slot.h"

namespace horon {

class WindowMemory {
 public:
  using Address = SharedMemory::Address;

  static Result<std::shared_ptr<WindowMemory>> Make(int slots, int64_t bytes);
  // The owner's memory, shared; null when this process cannot have it.
  static std::shared_ptr<WindowMemory> Map(const Address& address, int slots, int64_t bytes);

  Address address() const { return memory_->address(); }
  Slot slot(int i) const { return {memory_->data() + i * Slot::BytesFor(bytes_), bytes_}; }

 private:
  WindowMemory(std::shared_ptr<SharedMemory> memory, int64_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {}
  std::shared_ptr<SharedMemory> memory_;
  int64_t bytes_;
};

}  // namespace horon
