// Entry: one tensor on its way through the runtime. Move-only, so it is in exactly one stage at a
// time.
#pragma once

#include <cstddef>

#include "runtime/core/process_sets.h"
#include "runtime/core/registry.h"
#include "runtime/core/work.h"

namespace horon {

struct Entry {
  SharedRegistration what;           // pending until the promise is kept
  const std::byte* input = nullptr;  // lent by the user until then
  std::byte* output = nullptr;       // null: the Work will own it
  Promise promise;
  Agreement agreed;          // set by the negotiator
  ProcessSets::Ranks ranks;  // of its process set when it was agreed; set by the negotiator
  uint64_t locked = 0;       // > 0: started by the locked schedule, in the batch of this number

  const Request& request() const { return what->request; }
};

}  // namespace horon
