// The C API's handle of a work: what it is, and what can be asked of it without the runtime (its
// references, its outputs). Asking whether it is done, waiting and releasing are in c_api.cc,
// because they ask for the job. Used on the user's threads.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "runtime/base/kept_memory.h"
#include "runtime/core/work.h"
#include "runtime/include/horon/horon.h"

namespace horon {

// Number of this process's membership in a job, the last one if there is none. In c_api.cc.
int Life();

}  // namespace horon

// A Work that is its own handle: one piece of memory for both.
struct horon_work : horon::Work {
  using Work::Work;
  const int life = horon::Life();  // in which it was submitted
  std::atomic<int> references{1};
  std::shared_ptr<horon_work> self;  // while it has references
};

namespace horon {

template <typename... Arguments>
std::shared_ptr<horon_work> MakeWork(Arguments&&... arguments) {
  return std::allocate_shared<horon_work>(KeptMemory<horon_work>(),
                                          std::forward<Arguments>(arguments)...);
}

// A handle with one reference, which the caller has. The work was made as a horon_work.
horon_work* Handle(const std::shared_ptr<Work>& work);

}  // namespace horon
