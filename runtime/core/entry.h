// Entry: one tensor on its way through the runtime. Move-only, so it is in exactly one stage at a
// time.
#pragma once

#include <cstddef>

#include "runtime/core/process_sets.h"
#include "runtime/core/work.h"
#include "runtime/op/op.h"

namespace horon {

struct Entry {
  Request request;
  const std::byte* input = nullptr;  // lent by the user until the promise is kept
  std::byte* output = nullptr;       // null: the Work will own it
  Promise promise;
  Agreement agreed;          // set by the negotiator
  Op* op = nullptr;          // set by the negotiator
  ProcessSets::Ranks ranks;  // of its process set when it was agreed; set by the negotiator

  std::string key() const { return KeyOf(request.process_set, request.name); }
};

}  // namespace horon
