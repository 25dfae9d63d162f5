// ValuesCopy: a copy of a window's values that is made as far as it is asked for, so that the first
// piece of a message goes before the last one is copied, and each is in the cache when it goes.
// What is copied from may change, or go, once all of it was asked for. Holder of the baton.
#pragma once

#include <cstring>
#include <memory>

#include "runtime/device/memory.h"

namespace horon {

class ValuesCopy {
 public:
  // As many bytes as there is room for.
  ValuesCopy(Buffer room, const std::byte* source) : room_(std::move(room)), source_(source) {}
  int64_t bytes() const { return room_.bytes(); }
  // Of which the first `end` bytes are there.
  std::byte* DataTo(int64_t end) {
    if (end > made_) {
      std::memcpy(room_.data() + made_, source_ + made_, static_cast<size_t>(end - made_));
      made_ = end;
    }
    return room_.data();
  }
  std::byte* data() { return DataTo(bytes()); }

 private:
  Buffer room_;
  const std::byte* source_;
  int64_t made_ = 0;
};

using SharedCopy = std::shared_ptr<ValuesCopy>;

}  // namespace horon
