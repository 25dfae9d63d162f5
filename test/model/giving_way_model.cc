// The background thread gives way to a caller that wants the baton (Runtime::SleepInBackground,
// Runtime::Lend, runtime/core/baton.h): it runs one more cycle, and then sleeps though that moved
// something, for the caller goes on. Woken while the caller has the baton it sleeps again, but for
// a moment only if it was rung for and is announced (Runtime::SleepWithoutBaton). Checked: the work
// ends, also where the caller gives up at that very moment, or a peer's message comes while it
// returns, and nobody sleeps for ever (relacy reports a deadlock).
#include "model.h"

namespace {

constexpr unsigned kAwake = 0, kAsleep = 1;
constexpr int kCycles = 7, kTries = 8, kTimeouts = 3;
constexpr unsigned kLate = 64;  // a message may come at any moment: steps

enum class Mistake { kNone, kCountsOnIt, kSilentGiver, kLeavesWork, kSleepsOn };

template <Mistake kMistake>
struct Giving : rl::test_suite<Giving<kMistake>, 3> {
  rl::atomic<unsigned> baton, wanted, sleeper, message;
  model::Futex rings, done;
  rl::var<int> left;   // cycles; whoever has the baton
  rl::var<bool> read;  // the message; whoever has the baton

  void before() {
    baton($) = 1;  // the background thread's
    wanted($) = 0;
    sleeper($) = kAwake;
    message($) = 0;
    rings.word($) = done.word($) = 0;
    left($) = kCycles;
    read($) = false;
  }

  void thread(unsigned index) { index == 0 ? Background() : index == 1 ? Caller() : Peer(); }

  bool Done() { return done.word($).load(rl::mo_acquire) == 1; }
  bool Wanted() { return wanted($).load(rl::mo_relaxed) != 0; }
  bool TryTake() {
    unsigned free = 0;
    return baton($).compare_exchange_strong(free, 1u, rl::mo_acquire);
  }
  void Give() { baton($).store(0, rl::mo_release); }

  bool CycleMoved() {
    const bool comes = !read($) && message($).load(rl::mo_acquire) == 1;
    if (left($) == 0 && !comes) return false;
    if (comes) read($) = true;
    if (left($) > 0) left($) = left($) - 1;
    if (left($) == 0 && read($)) {
      done.word($).store(1, rl::mo_release);
      done.Wake();
    }
    return true;
  }

  unsigned Announce() {
    const unsigned ticket = Ticket();
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
    int timeouts = kTimeouts;
    SleepFor(ticket, timeouts);
    rl::linear_backoff backoff;
    for (unsigned heard = ticket;;) {
      ticket = Ticket();
      if (TryTake()) break;
      if (sleeper($).load(rl::mo_relaxed) == kAwake || kMistake == Mistake::kSleepsOn)
        heard = ticket;
      ticket == heard ? SleepFor(ticket, timeouts) : backoff.yield($);  // for a moment
    }
    sleeper($).store(kAwake, rl::mo_relaxed);
  }

  unsigned Ticket() { return rings.word($).load(rl::mo_acquire); }
  // Until it is rung for, or some time has passed.
  void SleepFor(unsigned ticket, int& timeouts) {
    if (timeouts > 0 && rl::rand(2) == 0)
      --timeouts;
    else
      rings.Wait(ticket);
  }

  void Peer() {
    for (unsigned wait = rl::rand(kLate); wait > 0; --wait) sleeper($).load(rl::mo_relaxed);
    message($).store(1, rl::mo_release);
    Ring();
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
    // Its own tensor may be done before the others, or last.
    for (int cycles = rl::rand(2) == 0 ? 1 : kCycles; cycles > 0; --cycles) CycleMoved();
    Announce();
    const bool more = CycleMoved();
    Announce();  // that look may have changed what it waits for
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
  right = model::Check<Giving<Mistake::kSleepsOn>>("a ring while the caller returns", false,
                                                   kRuns) &&
          right;
  return right ? 0 : 1;
}
