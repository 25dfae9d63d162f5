// The doorbell (runtime/base/doorbell.h): a sleeper announces itself, looks once more, sleeps; a
// ringer publishes, then looks whether anybody sleeps. Checked: no ring is lost, so that nobody
// sleeps for ever (relacy reports a deadlock).
#include "model.h"

namespace {

constexpr unsigned kAwake = 0, kAsleep = 1;

enum class Mistake { kNone, kNoFenceSleeper, kNoFenceRinger, kLateTicket };

// Two ringers publish a piece of work each; the sleeper must see both.
template <Mistake kMistake>
struct Bell : rl::test_suite<Bell<kMistake>, 3> {
  rl::atomic<unsigned> work[2];
  rl::atomic<unsigned> sleeper;
  model::Futex rings;

  void before() {
    work[0]($) = work[1]($) = 0;
    sleeper($) = kAwake;
    rings.word($) = 0;
  }

  bool Done() {
    return work[0]($).load(rl::mo_acquire) == 1 && work[1]($).load(rl::mo_acquire) == 1;
  }

  void thread(unsigned index) { index == 2 ? Sleeper() : Ringer(index); }

  void Ringer(unsigned index) {
    work[index]($).store(1, rl::mo_release);
    if (kMistake != Mistake::kNoFenceRinger) rl::atomic_thread_fence(rl::mo_seq_cst, $);
    if (sleeper($).load(rl::mo_relaxed) == kAwake) return;
    rings.word($).fetch_add(1, rl::mo_release);
    rings.Wake();
  }

  void Sleeper() {
    while (!Done()) {
      unsigned ticket = rings.word($).load(rl::mo_acquire);
      sleeper($).store(kAsleep, rl::mo_relaxed);
      if (kMistake != Mistake::kNoFenceSleeper) rl::atomic_thread_fence(rl::mo_seq_cst, $);
      const bool done = Done();
      if (kMistake == Mistake::kLateTicket) ticket = rings.word($).load(rl::mo_acquire);
      if (!done) rings.Wait(ticket);
      sleeper($).store(kAwake, rl::mo_relaxed);
    }
  }
};

}  // namespace

int main() {
  bool right = model::Check<Bell<Mistake::kNone>>("the doorbell", true, 300000);
  right =
      model::Check<Bell<Mistake::kNoFenceSleeper>>("a sleeper without its fence", false, 300000) &&
      right;
  right =
      model::Check<Bell<Mistake::kNoFenceRinger>>("a ringer without its fence", false, 300000) &&
      right;
  right =
      model::Check<Bell<Mistake::kLateTicket>>("a ticket taken too late", false, 300000) && right;
  return right ? 0 : 1;
}
