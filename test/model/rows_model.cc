// Rows that all members of a lane look at, in one pass (runtime/transport/lane_swap.cc), longer
// than their slots: broadcasts, which one member gives, and alltoalls, in which each takes its part
// of all others'; among them a reduction (lane_stream.cc), which writes to others' slots. The first
// member packs any chunk past its caches or through them: a store past them comes to memory at any
// time up to the fence behind it, so another thread does it here. Checked: nobody touches a slot
// while another one writes to it, all take what was packed for them, all see that they run the same
// row, and nobody waits for ever.
#include "model.h"

namespace {

constexpr unsigned kRanks = 3, kChunks = 3, kSlots = 2;

enum class Form { kFromFirst, kFromLast, kAlltoall, kReduction };

enum class Mistake {
  kNone,
  kRelaxedPacked,
  kRelaxedTaken,
  kEarlyReuse,
  kAsksOne,
  kLooksAtGiver,
  kSilentTaker,
  kLateAnnounce,
  kTrustsBeats,
  kNoFence
};

template <Mistake kMistake, Form... kForms>
struct Lane : rl::test_suite<Lane<kMistake, kForms...>, kRanks + 1>, model::LaneWords<kRanks> {
  rl::var<int> slots[kRanks][kSlots][kRanks];  // a part for each rank
  rl::atomic<unsigned> bucket[kRanks][kSlots], beat[kRanks];

  // One store of the first member that is on its way past the caches.
  rl::var<unsigned> late_chunk, late_part;
  rl::atomic<unsigned> sent, landed, over;

  void before() {
    Clear();
    for (unsigned r = 0; r < kRanks; ++r) {
      beat[r]($) = 0;
      for (auto& word : bucket[r]) word($) = 0;
    }
    sent($) = landed($) = over($) = 0;
  }

  // Chunks are counted since the lane was made.
  static int Value(unsigned rank, unsigned chunk, unsigned part) {
    return static_cast<int>(100 * chunk + 10 * part + rank + 1);
  }
  static rl::memory_order Release(Mistake mistake) {
    return kMistake == mistake ? rl::mo_relaxed : rl::mo_release;
  }
  rl::var<int>& Slot(unsigned rank, unsigned chunk, unsigned part) {
    return slots[rank][chunk % kSlots][part];
  }

  void thread(unsigned me) {
    if (me == kRanks) return PastCaches();
    unsigned first = 0;
    for (const Form form : {kForms...}) {
      form == Form::kReduction ? Reduction(me, first) : Row(me, first, form);
      first += kChunks;
    }
    if (me == 0) over($).store(1, rl::mo_release);
  }

  // --- stores past the caches

  void PastCaches() {
    for (unsigned done = 0;;) {
      if (sent($).load(rl::mo_acquire) > done) {
        Slot(0, late_chunk($), late_part($))($) = Value(0, late_chunk($), late_part($));
        landed($).store(++done, rl::mo_release);
      } else if (over($).load(rl::mo_acquire) == 1) {
        return;
      } else {
        rl::yield(1, $);
      }
    }
  }
  void Fence() {
    while (landed($).load(rl::mo_acquire) != sent($).load(rl::mo_relaxed)) rl::yield(1, $);
  }
  void StorePast(unsigned chunk, unsigned part) {
    Fence();  // there is one place
    late_chunk($) = chunk;
    late_part($) = part;
    sent($).store(sent($).load(rl::mo_relaxed) + 1, rl::mo_release);
  }

  // --- what all forms do

  bool SlotFree(unsigned me, unsigned chunk) {
    if (chunk < kSlots) return true;
    const unsigned least = chunk - kSlots + (kMistake == Mistake::kEarlyReuse ? 0 : 1);
    if (kMistake == Mistake::kAsksOne)
      return words[(me + 1) % kRanks].taken($).load(rl::mo_acquire) >= least;
    return All(&Words::taken, least);
  }
  void Announce(unsigned me, unsigned first) {
    bucket[me][first % kSlots]($).store(first + 1, rl::mo_relaxed);
  }
  void CheckBucket(unsigned first) {
    for (auto& of_rank : bucket)
      RL_ASSERT(of_rank[first % kSlots]($).load(rl::mo_relaxed) == first + 1);
  }

  // --- a row

  static bool Gives(Form form, unsigned rank, unsigned part) {
    if (form == Form::kAlltoall) return part != rank;
    return part == 0 && rank == (form == Form::kFromFirst ? 0 : kRanks - 1);
  }

  void Row(unsigned me, unsigned first, Form form) {
    for (unsigned packed = 0, met = 0; met < kChunks;) {
      if (met < packed && CanMeet(first + met, form)) {
        if (met == 0) CheckBucket(first);
        Meet(me, first + met++, form);
      } else if (packed < kChunks && SlotFree(me, first + packed)) {
        if (packed == 0 && kMistake != Mistake::kLateAnnounce) Announce(me, first);
        Pack(me, first + packed++, form);
        if (packed == 1 && kMistake == Mistake::kLateAnnounce) Announce(me, first);
      } else {
        rl::yield(1, $);
      }
    }
  }

  bool CanMeet(unsigned chunk, Form form) {
    const unsigned giver = form == Form::kFromFirst ? 0 : kRanks - 1;
    if (kMistake == Mistake::kLooksAtGiver)
      return words[giver].packed($).load(rl::mo_acquire) > chunk;
    if (kMistake != Mistake::kTrustsBeats) return All(&Words::packed, chunk + 1);
    for (auto& of_rank : beat)
      if (of_rank($).load(rl::mo_acquire) <= chunk) return false;
    return true;
  }

  void Pack(unsigned me, unsigned chunk, Form form) {
    const bool past = me == 0 && rl::rand(2) == 0;
    bool gives = false;
    for (unsigned part = 0; part < kRanks; ++part) {
      if (!Gives(form, me, part)) continue;
      gives = true;
      if (past)
        StorePast(chunk, part);
      else
        Slot(me, chunk, part)($) = Value(me, chunk, part);
    }
    if (past && kMistake != Mistake::kNoFence) Fence();
    if (!gives && kMistake == Mistake::kSilentTaker) return;
    beat[me]($).store(chunk + 1, rl::mo_relaxed);
    words[me].packed($).store(chunk + 1, Release(Mistake::kRelaxedPacked));
  }

  void Meet(unsigned me, unsigned chunk, Form form) {
    for (unsigned r = 0; r < kRanks; ++r) {
      const unsigned part = form == Form::kAlltoall ? me : 0;
      if (Gives(form, r, part)) RL_ASSERT(Slot(r, chunk, part)($) == Value(r, chunk, part));
    }
    words[me].reduced($).store(chunk + 1, rl::mo_release);
    words[me].taken($).store(chunk + 1, Release(Mistake::kRelaxedTaken));
  }

  // --- a reduction: a sum goes to the slot of the member behind the one that made it

  void Reduction(unsigned me, unsigned first) {
    for (unsigned packed = 0, reduced = 0, taken = 0; taken < kChunks;) {
      if (taken < reduced && All(&Words::reduced, first + taken + 1)) {
        Take(me, first + taken++);
      } else if (reduced < packed && All(&Words::packed, first + reduced + 1)) {
        if (reduced == 0) CheckBucket(first);
        Reduce(me, first + reduced++);
      } else if (packed < kChunks && SlotFree(me, first + packed)) {
        if (packed == 0) Announce(me, first);
        Pack(me, first + packed++, Form::kAlltoall);
      } else {
        rl::yield(1, $);
      }
    }
  }

  void Reduce(unsigned me, unsigned chunk) {
    int sum = Value(me, chunk, me);
    for (unsigned r = 0; r < kRanks; ++r)
      if (r != me) sum += Slot(r, chunk, me)($);
    Slot((me + 1) % kRanks, chunk, me)($) = sum;
    words[me].reduced($).store(chunk + 1, rl::mo_release);
  }

  void Take(unsigned me, unsigned chunk) {
    for (unsigned part = 0; part < kRanks; ++part) {
      int sum = 0;
      for (unsigned r = 0; r < kRanks; ++r) sum += Value(r, chunk, part);
      if (part != me) RL_ASSERT(Slot((part + 1) % kRanks, chunk, part)($) == sum);
    }
    words[me].taken($).store(chunk + 1, Release(Mistake::kRelaxedTaken));
  }
};

template <Mistake kMistake, Form... kForms>
bool Right(const char* what) {
  return model::Check<Lane<kMistake, kForms...>>(what, kMistake == Mistake::kNone, 40000);
}

}  // namespace

int main() {
  using enum Form;
  bool right = Right<Mistake::kNone, kFromFirst, kFromLast>("broadcasts of two roots");
  right = Right<Mistake::kNone, kAlltoall, kFromFirst>("an alltoall, then a broadcast") && right;
  right = Right<Mistake::kNone, kFromLast, kAlltoall>("a broadcast, then an alltoall") && right;
  right = Right<Mistake::kNone, kFromFirst, kReduction, kAlltoall>("a reduction among rows") &&
          right;
  // Each of these is needed:
  right = Right<Mistake::kRelaxedPacked, kFromLast>("packed without release") && right;
  right = Right<Mistake::kRelaxedTaken, kFromLast>("taken without release") && right;
  right = Right<Mistake::kEarlyReuse, kFromLast>("a slot used again too early") && right;
  right = Right<Mistake::kAsksOne, kFromLast>("a slot that one taker needs no more") && right;
  right = Right<Mistake::kLooksAtGiver, kFromLast>("only the root has packed") && right;
  right = Right<Mistake::kSilentTaker, kFromLast>("takers that do not say packed") && right;
  right = Right<Mistake::kLateAnnounce, kAlltoall>("which row it is said too late") && right;
  right = Right<Mistake::kTrustsBeats, kFromLast>("beats taken for packed") && right;
  right = Right<Mistake::kNoFence, kFromFirst>("past the caches without a fence") && right;
  return right ? 0 : 1;
}
