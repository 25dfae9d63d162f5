// The C API's handle of a work: what it is, and what can be asked of it without the runtime (its
// references, its outputs). Waiting and releasing are in c_api.cc, because they ask for the job.
// Used on the user's threads.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/core/work.h"
#include "runtime/include/horon/horon.h"

struct horon_work {
  std::atomic<int> references{1};
  std::shared_ptr<horon::Work> work;
};

namespace horon {

// A new handle with one reference, which the caller has.
horon_work* Handle(std::shared_ptr<Work> work);

}  // namespace horon
