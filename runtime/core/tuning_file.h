// The file that keeps a tuning for the next job (HORON_AUTOTUNE_FILE): lines of name=value, #
// begins a comment. User threads and the holder of the baton; blocks as files do.
#pragma once

#include <string>

#include "runtime/base/status.h"
#include "runtime/core/tuning.h"

namespace horon {

std::string TuningText(const Tuning& tuning);
// kInvalidArgument with the line that is wrong.
Result<Tuning> ParseTuning(const std::string& text);

}  // namespace horon
