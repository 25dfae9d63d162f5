// How a function of the C API fails: its code, and the sentence that horon_last_error() gives.
//
// Used by the files that implement horon.h; any thread.
#pragma once

#include <exception>
#include <string>

#include "runtime/base/status.h"

namespace horon {

// The sentence of this thread's last failure.
std::string& LastError();

int Fail(const Status& status);

// Runs f, which gives a Status; what the standard library throws becomes one.
template <typename F>
int Guard(F&& f) {
  try {
    return Fail(f());
  } catch (const std::exception& e) {
    return Fail(Status::Internal(
        std::string("out of memory or another fault of the standard library: ") + e.what()));
  }
}

}  // namespace horon
