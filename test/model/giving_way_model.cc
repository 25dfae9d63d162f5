// The background thread gives way to a caller that wants the baton (Runtime::SleepInBackground,
// Runtime::Lend, runtime/core/baton.h): it runs one more cycle, and then sleeps though that moved
// something, for the caller goes on. Checked: the work ends, also where the caller gives up at that
// very moment, and nobody sleeps for ever (relacy reports a deadlock).
#include "model.h"

namespace {

constexpr unsigned kAwake = 0, kAsleep = 1;
constexpr int kCycles = 7, kTries = 8;

enum class Mistake { kNone, kCountsOnIt, kSilentGiver, kLeavesWork };

template <Mistake kMistake>
struct Giving : rl::test_suite<Giving<kMistake>, 2> {
  rl::atomic<unsigned> baton, wanted, sleeper;
  model::Futex rings, done;
  rl::var<int> left;  // cycles; whoever has the baton

  void before() {
    baton($) = 1;  // the background thread's
    wanted($) = 0;
    sleeper($) = kAwake;
    rings.word($) = done.word($) = 0;
    left($) = kCycles;
  }

  void thread(unsigned index) { index == 0 ? Background() : Caller(); }

  bool Done() { return done.word($).load(rl::mo_acquire) == 1; }
  bool Wanted() { return wanted($).load(rl::mo_relaxed) != 0; }
  bool TryTake() {
    unsigned free = 0;
    return baton($).compare_exchange_strong(free, 1u, rl::mo_acquire);
  }
  void Give() { baton($).store(0, rl::mo_release); }

  bool CycleMoved() {
    if (left($) == 0) return false;
    left($) = left($) - 1;
    if (left($) == 0) {
      done.word($).store(1, rl::mo_release);
      done.Wake();
    }
    return true;
  }

  unsigned Announce() {
    const unsigned ticket = rings.word($).load(rl::mo_acquire);
    sleeper($).store(kAsleep, rl::mo_relaxed);
    rl::atomic_thread_fence(rl::mo_seq_cst, $);
    return ticket;
  }
  void Wake() {
    rings.word($).fetch_add(1, rl::mo_release);
    rings.Wake();
  }
  void Ring() {
    rl::atomic_thread_fence(rl::mo_seq_cst, $);
    if (sleeper($).load(rl::mo_relaxed) != kAwake) Wake();
  }

  void Background() {
    while (!Done()) {
      const bool moved = CycleMoved();
      if (Wanted() || !moved) GoToSleep();
    }
  }

  void GoToSleep() {
    unsigned ticket = Announce();
    bool moved = CycleMoved();
    if (moved && Wanted()) {
      ticket = Announce();
      moved = CycleMoved() && kMistake != Mistake::kCountsOnIt && !Wanted();
    }
    if (moved || Done()) {
      sleeper($).store(kAwake, rl::mo_relaxed);
      return;
    }
    Give();
    rings.Wait(ticket);
    rl::linear_backoff backoff;
    while (!TryTake()) backoff.yield($);  // it sleeps for it, in Baton::Take
    sleeper($).store(kAwake, rl::mo_relaxed);
  }

  void Caller() {
    wanted($).store(1, rl::mo_relaxed);
    bool taken = false;
    for (int tries = 0; !taken && tries < kTries; ++tries) taken = TryTake();
    wanted($).store(0, rl::mo_relaxed);
    taken ? Lend() : GiveUp();
    done.Wait(0);
    Ring();  // Shutdown
  }

  void GiveUp() {
    if (kMistake != Mistake::kSilentGiver) Ring();
  }

  void Lend() {
    sleeper($).store(kAwake, rl::mo_relaxed);
    CycleMoved();  // its own tensor may be done before the others
    Announce();
    const bool more = CycleMoved();
    Give();
    if (more && kMistake != Mistake::kLeavesWork) Wake();
  }
};

}  // namespace

int main() {
  constexpr unsigned kRuns = 300000;
  bool right = model::Check<Giving<Mistake::kNone>>("giving way", true, kRuns);
  right = model::Check<Giving<Mistake::kCountsOnIt>>("a caller counted on that gives up", false,
                                                     kRuns) &&
          right;
  right = model::Check<Giving<Mistake::kSilentGiver>>("a caller that gives up in silence", false,
                                                      kRuns) &&
          right;
  right = model::Check<Giving<Mistake::kLeavesWork>>("a caller that leaves work behind", false,
                                                     kRuns) &&
          right;
  return right ? 0 : 1;
}
