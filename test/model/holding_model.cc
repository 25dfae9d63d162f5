// Holding back (Hold, LetGo, Await of runtime/base/doorbell.h): a user's thread publishes work and
// wakes nobody for it, but says so; a peer that waits for that work says that. Checked: one of the
// two rings, so that neither rank sleeps while the other waits (relacy reports a deadlock). Of a
// background thread that holds work back itself (Runtime::Due) that is left out: it sleeps for so
// long only.
#include "model.h"

namespace {

constexpr unsigned kAwake = 0, kAsleep = 1;

enum class Mistake { kNone, kNoFenceHold, kNoFenceAwait, kLetGoLate, kHoldEarly };

// One rank's user and its background thread, and a peer's, which has nothing to do before that
// rank has done what was submitted.
template <Mistake kMistake>
struct Held : rl::test_suite<Held<kMistake>, 3> {
  rl::mutex queue_mutex;
  rl::var<unsigned> queued;
  rl::atomic<unsigned> held, awaited, sleeper;
  model::Futex rings, done;

  void before() {
    queued($) = 0;
    held($) = awaited($) = 0;
    sleeper($) = kAwake;
    rings.word($) = done.word($) = 0;
  }

  void thread(unsigned index) {
    if (index == 0) User();
    if (index == 1) Background();
    if (index == 2) Peer();
  }

  void Ring() {
    rl::atomic_thread_fence(rl::mo_seq_cst, $);
    if (sleeper($).load(rl::mo_relaxed) == kAwake) return;
    rings.word($).fetch_add(1, rl::mo_release);
    rings.Wake();
  }

  bool Hold() {
    held($).store(1, rl::mo_relaxed);
    if (kMistake != Mistake::kNoFenceHold) rl::atomic_thread_fence(rl::mo_seq_cst, $);
    return awaited($).load(rl::mo_relaxed) != 0;
  }

  void User() {
    const bool early = kMistake == Mistake::kHoldEarly && Hold();
    queue_mutex.lock($);
    queued($) = 1;
    queue_mutex.unlock($);
    if (kMistake == Mistake::kHoldEarly ? early : Hold()) Ring();
  }

  void LetGo() {
    if (held($).load(rl::mo_relaxed) != 0) held($).store(0, rl::mo_relaxed);
  }
  bool Pop() {
    if (kMistake != Mistake::kLetGoLate) LetGo();
    queue_mutex.lock($);
    const bool popped = queued($) != 0;
    queue_mutex.unlock($);
    if (kMistake == Mistake::kLetGoLate) LetGo();
    return popped;
  }

  void Background() {
    while (!Pop()) {
      const unsigned ticket = rings.word($).load(rl::mo_acquire);
      sleeper($).store(kAsleep, rl::mo_relaxed);
      rl::atomic_thread_fence(rl::mo_seq_cst, $);
      if (Pop()) break;
      rings.Wait(ticket);
      sleeper($).store(kAwake, rl::mo_relaxed);
    }
    done.word($).store(1, rl::mo_release);
    done.Wake();
  }

  void Peer() {
    awaited($).fetch_add(1, rl::mo_relaxed);
    if (kMistake != Mistake::kNoFenceAwait) rl::atomic_thread_fence(rl::mo_seq_cst, $);
    if (held($).load(rl::mo_relaxed) != 0) Ring();
    done.Wait(0);
    awaited($).fetch_sub(1, rl::mo_relaxed);
  }
};

}  // namespace

int main() {
  constexpr unsigned kIterations = 300000;
  bool right = model::Check<Held<Mistake::kNone>>("holding back", true, kIterations);
  right = model::Check<Held<Mistake::kNoFenceHold>>("who holds without its fence", false,
                                                    kIterations) && right;
  right = model::Check<Held<Mistake::kNoFenceAwait>>("who waits without its fence", false,
                                                     kIterations) && right;
  right = model::Check<Held<Mistake::kLetGoLate>>("let go after the look", false, kIterations) &&
          right;
  right = model::Check<Held<Mistake::kHoldEarly>>("said before it is published", false,
                                                  kIterations) && right;
  return right ? 0 : 1;
}
