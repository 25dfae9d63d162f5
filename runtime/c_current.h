// The job that this process is in, for the files that implement horon.h beside c_api.cc, which owns
// it. Any thread.
#pragma once

#include <memory>

#include "runtime/c_error.h"
#include "runtime/join.h"

namespace horon {

// Null when not initialised, or in a forked child.
std::shared_ptr<Job> Current();
// In a child of the process that initialised. What needs its threads or locks is leaked there.
bool Forked();
// Why Current() is null.
Status NotInitialised();

// Runs f with the runtime that there is.
template <typename F>
int Command(F&& f) {
  return Guard([&]() -> Status {
    const std::shared_ptr<Job> job = Current();
    return job ? f(*job->runtime) : NotInitialised();
  });
}

}  // namespace horon
