// Entry: one tensor on its way through the runtime. Move-only, so it is in exactly one stage at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/recycler.h"
#include "runtime/core/process_sets.h"
#include "runtime/core/registry.h"
#include "runtime/core/work.h"
#include "runtime/device/stream.h"

namespace horon {

// Which batch of a locked schedule this is: the same on all ranks.
struct Locked {
  uint64_t schedule = 0;  // the decision since which it is locked
  uint64_t plan = 0;      // a hash of what it runs
  uint64_t number = 0;    // counted over the life of the job; 0: not locked
};

// Whether it is not exchanged at all, so that its output is what its input is.
enum class Kept : uint8_t {
  kNot,
  kWithAll,  // all ranks count it as a call of the op, those as well that have not submitted it
  kLate,     // they have counted it before, this rank too
};

// When it passed what, by the steady clock in ns; 0 unless a timeline is recorded.
struct Stamps {
  int64_t submitted = 0;  // by the user
  int64_t taken = 0;      // out of the queue
};

struct Entry {
  SharedRegistration what;           // pending until the promise is kept
  const std::byte* input = nullptr;  // lent by the user until then
  std::byte* output = nullptr;       // null: the Work will own it
  Promise promise;
  Agreement agreed;          // set by the negotiator
  ProcessSets::Ranks ranks;  // of its process set when it was agreed; set by the negotiator
  SharedEvent ready;         // GPU: when the input may be read; null on the host
  bool joined = false;       // a rank that has joined takes part; set by the negotiator
  Kept kept = Kept::kNot;    // set by the negotiator
  Locked locked{};           // the batch in which the locked schedule has started it
  Stamps stamps{};

  const Request& request() const { return what->request; }
};
using Entries = RecycledVector<Entry>;  // on the holder of the baton

}  // namespace horon
