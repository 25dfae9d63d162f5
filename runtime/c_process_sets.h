// Process sets as the C API shows them. A change is collective over all ranks of the job and
// blocks: it is a request like any other, which the negotiator applies at the same place in the
// stream on every rank. Called by c_api.cc, on the user's thread.
#pragma once

#include <span>

#include "runtime/core/runtime.h"

namespace horon {

// `ranks`: global ranks, in any order. Gives the set's id, the same on all ranks.
Result<int> AddProcessSet(Runtime& runtime, std::span<const int> ranks);
Status RemoveProcessSet(Runtime& runtime, int id);
// Number of its ranks, and this rank's place among them; -1: no such set, or not in it.
int ProcessSetSize(const Runtime& runtime, int id);
int ProcessSetRank(const Runtime& runtime, int id);
// Its global ranks, ascending; `out` has room for all.
Status CopyProcessSet(const Runtime& runtime, int id, int* out);

}  // namespace horon
