#include "runtime/peer/window.h"

#include <algorithm>

namespace horon {
namespace {

uint64_t HashOf(const std::string& text) {  // FNV-1a: the same in every process
  uint64_t hash = 1469598103934665603u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

Window::Window(WindowShape shape, std::byte* values, std::shared_ptr<WindowMemory> memory,
               uint64_t epoch, std::shared_ptr<StagedValues> staged)
    : shape_(std::move(shape)),
      staged_(std::move(staged)),
      values_(values),
      memory_(std::move(memory)),
      epoch_(epoch),
      count_(CountOf(shape_.shape)),
      bytes_(count_ * SizeOf(shape_.dtype)),
      set_(HashOf(shape_.name + "/" + std::to_string(static_cast<int>(shape_.dtype)) +
                  ToString(shape_.shape))) {
  if (shape_.rounds) round = shape_.rounds->first;
}

int Window::slot_of(int from) const {
  const auto at = std::lower_bound(shape_.in.begin(), shape_.in.end(), from);
  return at != shape_.in.end() && *at == from ? static_cast<int>(at - shape_.in.begin()) + 1 : -1;
}

void Window::Ask(bool wanted) const {
  for (const int from : shape_.in) slot(from).head().asked.store(wanted, std::memory_order_relaxed);
}

const Window::Near* Window::near(int rank) const {
  const auto at = near_.find(rank);
  return at != near_.end() ? &at->second : nullptr;
}

}  // namespace horon
