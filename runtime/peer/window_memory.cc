#include "runtime/peer/window_memory.h"

namespace horon {

Result<std::shared_ptr<WindowMemory>> WindowMemory::Make(int slots, int64_t bytes) {
  HORON_ASSIGN(auto memory, SharedMemory::Make(slots * Slot::BytesFor(bytes), "window"));
  std::shared_ptr<WindowMemory> made(new WindowMemory(std::move(memory), bytes));
  for (int i = 0; i < slots; ++i) made->slot(i).Make();
  return made;
}

std::shared_ptr<WindowMemory> WindowMemory::Map(const Address& address, int slots, int64_t bytes) {
  auto memory = SharedMemory::Map(address, slots * Slot::BytesFor(bytes));
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<WindowMemory>(new WindowMemory(std::move(memory), bytes));
}

}  // namespace horon
