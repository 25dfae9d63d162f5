// Requests as the C API takes them: checked, made into entries, and handed to the runtime.
// Everything that a caller may get wrong about one tensor is refused here, before it is queued.
// Called by c_api.cc, on the user's thread.
#pragma once

#include <memory>
#include <span>

#include "runtime/core/runtime.h"
#include "runtime/include/horon/horon.h"

namespace horon {

// Enqueues all of `requests` under one work, or none: kInvalidArgument, kUnsupported with the
// tensor's name, or why the runtime takes nothing. `group` may be null: tensors on their own.
// `wake` as in Runtime::Submit. Does not wait.
Result<std::shared_ptr<Work>> Submit(Runtime& runtime, std::span<const horon_request> requests,
                                     const char* group, bool wake);

}  // namespace horon
