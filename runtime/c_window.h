// Making and freeing windows, which all ranks do together, and checking what a caller orders. Made
// of collectives and of the PeerEngine; on the user's thread, blocking where it says so.
#pragma once

#include <memory>

#include "runtime/core/runtime.h"

namespace horon {

// A window's tensor: where it lies, and, on a GPU, when it may be read, or why nobody can know.
struct WindowTensor {
  std::byte* values = nullptr;
  Device device = {};
  Result<SharedEvent> ready = SharedEvent();
};

// Collective over all ranks; blocks. `zero`: slots begin as zeros, not as copies of the values.
Result<std::shared_ptr<Window>> MakeWindow(Runtime& runtime, WindowShape shape,
                                           const WindowTensor& tensor, bool zero);
// In its place on a rank that cannot make its part: gives `why`, which all others are told.
Status RefuseWindow(Runtime& runtime, const std::string& name, const Status& why);
// Collective over all ranks; blocks. kInvalidArgument, and the window stays, where a rank still has
// orders under way.
Status FreeWindow(Runtime& runtime, const std::shared_ptr<Window>& window);

// Starts an order, whose ranks may come in any order. kInvalidArgument: not a neighbor, a weight
// that is no number, a window that was freed.
Result<std::shared_ptr<Work>> StartOrder(Runtime& runtime, Order order, bool wake);

}  // namespace horon
