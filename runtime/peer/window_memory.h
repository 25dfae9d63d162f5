// WindowMemory: the slots of one rank's window, in a memfd that the other ranks of its node map:
// slot 0 is what the rank publishes, the others what its in-neighbors deliver, in ascending order.
//
// The owner makes it; others map it by what its Address says, which a token proves. A rank that
// cannot (another host, another pid namespace) sends messages instead. Any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/peer/slot.h"

namespace horon {

class WindowMemory {
 public:
  struct Address {  // travels as three integers
    int64_t pid = 0, fd = -1;
    int64_t token = 0;
    int64_t place = 0;  // in this process's memory, for other ranks of the same process
  };

  static Result<std::shared_ptr<WindowMemory>> Make(int slots, int64_t bytes);
  // The owner's memory, shared; null when this process cannot have it.
  static std::shared_ptr<WindowMemory> Map(const Address& address, int slots, int64_t bytes);
  ~WindowMemory();
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;

  Address address() const;
  Slot slot(int i) const;

 private:
  WindowMemory(std::byte* base, int64_t size, int fd, int64_t bytes)
      : base_(base), size_(size), fd_(fd), bytes_(bytes) {}
  std::byte* base_;
  int64_t size_;  // mapped here; 0: somebody else's in this process
  int fd_;        // -1: not the owner
  int64_t bytes_;
};

}  // namespace horon
