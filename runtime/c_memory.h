// Memory that the ranks of a process set make together and those of a node map from each other, so
// that lanes can reduce tensors in it where they lie. On the user's thread; blocks where it says
// so.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/core/runtime.h"

namespace horon {

// This rank's memory, and its place among the regions while it lives.
class UserMemory {
 public:
  // Collective over the set's ranks, with the same number of bytes; blocks. kInvalidArgument where
  // the numbers differ, kUnavailable where a rank has no memory: on all of them.
  static Result<std::unique_ptr<UserMemory>> Make(Runtime& runtime, int64_t bytes, int32_t set);
  ~UserMemory();
  UserMemory(const UserMemory&) = delete;
  UserMemory& operator=(const UserMemory&) = delete;

  std::byte* data() const { return region_->mine; }
  // Those of each node have mapped it.
  bool shared() const { return regions_ != nullptr; }

 private:
  UserMemory() = default;
  std::shared_ptr<SharedRegion> region_;
  std::shared_ptr<SharedRegions> regions_;  // null: it is in none
};

}  // namespace horon
