// Rows that two members swap (runtime/transport/lane_swap.cc), as long as their slots: one that is
// gone through to and fro, then another one in the same slots. Checked: nobody packs over what a
// member has still to look at, or to take back, and nobody waits for ever.
#include "model.h"

namespace {

constexpr unsigned kChunks = 2, kSlots = kChunks;

enum class Mistake { kNone, kRelaxedPacked, kRelaxedReduced, kRelaxedTaken, kTakenBackwards };

template <Mistake kMistake, bool kBack>
struct Swap : rl::test_suite<Swap<kMistake, kBack>, 2>, model::LaneWords<2> {
  rl::var<int> slots[2][kSlots];

  void before() { Clear(); }

  static int Value(unsigned member, unsigned chunk) {
    return static_cast<int>(10 * chunk + member + 1);
  }
  static rl::memory_order Release(Mistake mistake) {
    return kMistake == mistake ? rl::mo_relaxed : rl::mo_release;
  }

  void thread(unsigned me) {
    GoThrough(me, 0, /*passes=*/2);
    GoThrough(me, kChunks, /*passes=*/1);
  }

  void GoThrough(unsigned me, unsigned first, int passes) {
    unsigned packed = 0;
    for (int pass = 1; pass <= passes; ++pass) {
      const bool last = pass == passes, backwards = pass == 2, back = last && kBack;
      const auto place = [&](unsigned chunk) {
        return first + (backwards ? kChunks - 1 - chunk : chunk);
      };
      const auto slot = [&](unsigned member, unsigned chunk) -> rl::var<int>& {
        return slots[member][place(chunk) % kSlots];
      };
      const auto say_taken = [&](unsigned taken) {
        if (backwards && taken < kChunks && kMistake != Mistake::kTakenBackwards) return;
        words[me].taken($).store(first + taken, Release(Mistake::kRelaxedTaken));
      };
      unsigned met = 0, taken = 0;
      while (taken < kChunks) {
        if (back && taken < met && All(&Words::reduced, first + taken + 1)) {
          RL_ASSERT(slot(me, taken)($) == 2 * Value(me, place(taken)));
          say_taken(++taken);
        } else if (met < packed && All(&Words::packed, first + met + 1)) {
          const int theirs = slot(1 - me, met)($);
          RL_ASSERT(theirs == Value(1 - me, place(met)));
          if (back) slot(1 - me, met)($) = 2 * theirs;
          ++met;
          if (!back) taken = met;
          if (!last) continue;
          words[me].reduced($).store(first + met, Release(Mistake::kRelaxedReduced));
          if (!back) say_taken(taken);
        } else if (packed < kChunks &&
                   (first + packed < kSlots || All(&Words::taken, first + packed + 1 - kSlots))) {
          slots[me][(first + packed) % kSlots]($) = Value(me, first + packed);
          words[me].packed($).store(first + ++packed, Release(Mistake::kRelaxedPacked));
        } else {
          rl::yield(1, $);
        }
      }
    }
  }
};

}  // namespace

int main() {
  constexpr int kRuns = 200000;
  bool right = model::Check<Swap<Mistake::kNone, false>>("a row", true, kRuns);
  right = model::Check<Swap<Mistake::kNone, true>>("a row that comes back", true, kRuns) && right;
  // Each of these is needed:
  right =
      model::Check<Swap<Mistake::kRelaxedPacked, true>>("packed without release", false, kRuns) &&
      right;
  right =
      model::Check<Swap<Mistake::kRelaxedReduced, true>>("reduced without release", false, kRuns) &&
      right;
  right =
      model::Check<Swap<Mistake::kRelaxedTaken, false>>("taken without release", false, kRuns) &&
      right;
  right = model::Check<Swap<Mistake::kTakenBackwards, false>>("taken said chunk by chunk backwards",
                                                              false, kRuns) &&
          right;
  return right ? 0 : 1;
}
