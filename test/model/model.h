// What the models share: relacy, and a futex made of its mutex and condition variable.
//
// A model is the protocol alone, in miniature, over atomics that show what the C++ memory model
// allows and not what this processor happens to do. Relacy runs its threads in hundreds of thousands
// of random interleavings and finds data races, stale reads, deadlocks and failed assertions.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#include <relacy/relacy.hpp>
#pragma GCC diagnostic pop

#include <cstdio>
#include <cstdlib>

namespace model {

struct Futex {
  rl::atomic<unsigned> word;
  rl::mutex mutex;
  rl::condition_variable sleepers;

  void Wait(unsigned expected) {
    mutex.lock($);
    while (word($).load(rl::mo_relaxed) == expected) sleepers.wait(mutex, $);
    mutex.unlock($);
  }
  void Wake() {  // after word was changed
    mutex.lock($);
    sleepers.notify_all($);
    mutex.unlock($);
  }
};

// The words of a lane's ranks (runtime/transport/segment.h): monotonic, one writer each.
template <int kRanks>
struct LaneWords {
  struct Words {
    rl::atomic<unsigned> packed, reduced, taken;
  } words[kRanks];

  void Clear() {
    for (Words& w : words) {
      w.packed($) = 0;
      w.reduced($) = 0;
      w.taken($) = 0;
    }
  }
  bool All(rl::atomic<unsigned> Words::* word, unsigned least) {
    for (Words& w : words) {
      if ((w.*word)($).load(rl::mo_acquire) < least) return false;
    }
    return true;
  }
};

// Runs one model; whether what came of it is what was expected. A model that is broken on purpose
// must fail, or the check would be worth nothing.
template <typename Model>
bool Check(const char* what, bool should_hold, unsigned iterations) {
  rl::test_params params;
  params.search_type = rl::random_scheduler_type;
  params.iteration_count = iterations;
  params.execution_depth_limit = 20000;
  rl::ostringstream silence;
  params.output_stream = &silence;
  params.progress_stream = &silence;
  const bool holds = rl::simulate<Model>(params);
  const bool right = holds == should_hold;
  std::printf("%s: %s%s (%u interleavings)\n", right ? "ok" : "WRONG", what,
              holds ? " holds" : " is broken", static_cast<unsigned>(params.stop_iteration));
  if (!right) std::printf("%s\n", silence.str().c_str());
  return right;
}

}  // namespace model
