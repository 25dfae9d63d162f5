// Exchange: what every rank says, to every rank, for the calls of the C API that ranks make
// together. On the user's thread; blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/runtime.h"

namespace horon {

// Every rank's numbers, by rank in the process set; collective over its ranks under this name.
// `op`: "allgather", or "allgather:late=fail", which is kLate where some rank is.
Result<std::vector<std::vector<int64_t>>> Exchange(Runtime& runtime, const std::string& name,
                                                   const std::vector<int64_t>& mine,
                                                   int32_t process_set = 0,
                                                   const char* op = "allgather");

}  // namespace horon
