// Who takes part in what, as the C API shows it: process sets, and joining. A change is collective
// over all ranks of the job: it is a request like any other, which the negotiator applies at the
// same place in the stream on every rank. Those of process sets block, and can be broken off
// (look.h): the change stands, and is made once all ranks have asked. Called by c_api.cc, on the
// user's thread.
#pragma once

#include <span>

#include "runtime/core/runtime.h"

namespace horon {

// `ranks`: global ranks, in any order. Gives the set's id, the same on all ranks.
Result<int> AddProcessSet(Runtime& runtime, std::span<const int> ranks);
// Collective over the ranks of the set alone, of which this is one. The id of the one that was
// formed already, if there is one.
// `in_time`: kLate where some rank is.
Result<int> FormProcessSet(Runtime& runtime, std::span<const int> ranks, bool in_time = false);
Status RemoveProcessSet(Runtime& runtime, int id);
// This rank has no more tensors until the work is done, which is when all ranks have joined. The
// first of its received splits is then the rank that joined last.
Result<std::shared_ptr<Work>> SubmitJoin(Runtime& runtime);
// Number of its ranks, and this rank's place among them; -1: no such set, or not in it.
int ProcessSetSize(const Runtime& runtime, int id);
int ProcessSetRank(const Runtime& runtime, int id);
// Its global ranks, ascending; `out` has room for all.
Status CopyProcessSet(const Runtime& runtime, int id, int* out);

}  // namespace horon
