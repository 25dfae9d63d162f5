// Buckets that are taken back (Executor::TakeBack), and the chunks of theirs that a lane skips
// (Lane::Skip, runtime/transport/lane.cc). Ranks start a first bucket, and some of them a second
// one. The coordinator stops everybody; each moves nothing from then on, and says how many it has
// started. All go on behind the last one that all have started, and the next bucket begins beyond
// what was packed of one that was taken back: chunks in slots, or a whole row in memory of its own.
// Checked: nothing was written to what is taken back, nobody takes an old chunk for a new one, or
// touches memory while another rank writes to it, and nobody waits for ever. What the coordinator
// and the ranks tell each other orders nothing else.
#include "model.h"

namespace {

constexpr unsigned kRanks = 3, kSlots = 2, kChunks = 3;  // of each bucket
constexpr unsigned kMostPacked = (kChunks / kSlots + 1) * kSlots;
// Buckets that may be started before the stop, those that follow, and what tells these from them.
constexpr unsigned kTogether = 2, kAfterwards = 2, kAgain = 10;

enum class Mistake {
  kNone,
  kNothingSkipped,
  kSlotsSkipped,
  kTakenStays,
  kSkipsAtOnce,
  kGoesOn,
  kSaysTooLittle
};

// Where the second bucket is packed, and the one in its place when it was taken back. A row is
// packed at once, and each member looks at all others' chunks where they lie.
enum class Form { kInSlots, kInRow, kInRowThenSlots };

template <Mistake kMistake, Form kForm>
struct Lane : rl::test_suite<Lane<kMistake, kForm>, kRanks>, model::LaneWords<kRanks> {
  rl::var<int> slots[kRanks][kSlots][kRanks];  // a part for each rank
  rl::var<int> rows[kRanks][kChunks];
  rl::atomic<unsigned> bucket[kRanks][kSlots];
  // Of the coordinator, and what each has started, plus one.
  rl::atomic<unsigned> stop, resume, started[kRanks];

  // A bucket on its way on one rank.
  struct Stream {
    unsigned number, first;  // beyond kAgain: from after the stop
    unsigned packed, reduced, taken;

    unsigned word() const { return number % kAgain; }
    bool in_row() const {
      return kForm != Form::kInSlots && word() == 2 && (kForm == Form::kInRow || number < kAgain);
    }
  };

  void before() {
    Clear();
    for (auto& of_rank : bucket)
      for (auto& word : of_rank) word($) = 0;
    for (auto& of_rank : started) of_rank($) = 0;
    stop($) = resume($) = 0;
  }

  static int Value(unsigned rank, unsigned number, unsigned chunk, unsigned part) {
    return static_cast<int>(1000 * number + 100 * chunk + 10 * part + rank + 1);
  }
  static int Sum(unsigned number, unsigned chunk, unsigned part) {
    int sum = 0;
    for (unsigned r = 0; r < kRanks; ++r) sum += Value(r, number, chunk, part);
    return sum;
  }

  void thread(unsigned me) {
    const unsigned starts = me == 0 ? 1 : 1 + rl::rand(kTogether);
    // Buckets, their chunks, buckets that I have started.
    unsigned done = 0, first = 0, mine = 0, again = 0;
    Stream s{};
    const auto move_one = [&] {
      if (s.number != again + done + 1) s = {again + done + 1, first, 0, 0, 0};
      if (!Step(me, s)) return false;
      if (s.taken == kChunks) {
        ++done;
        first += kChunks;
      }
      return true;
    };

    for (bool said = false;;) {
      if (me == 0) Coordinate();
      if (!said && stop($).load(rl::mo_relaxed) == 1) {
        said = true;
        const unsigned least = kMistake == Mistake::kSaysTooLittle ? done : mine;
        started[me]($).store(least + 1, rl::mo_relaxed);
      }
      if (said && resume($).load(rl::mo_relaxed) != 0) break;
      if (!said && mine < starts && rl::rand(2) == 0) ++mine;
      const bool held = said && kMistake != Mistake::kGoesOn;
      if (held || done == mine || !move_one()) rl::yield(1, $);
    }

    const unsigned last = resume($).load(rl::mo_relaxed) - 1;
    RL_ASSERT(done <= last);
    if (s.number > last) {  // all of it is packed again
      RL_ASSERT(s.reduced == 0 && s.taken == 0);
      s = {};
    }
    if (kMistake == Mistake::kSkipsAtOnce) Skip(me, first);
    while (done < last)
      if (!move_one()) rl::yield(1, $);
    if (kMistake != Mistake::kSkipsAtOnce) Skip(me, first);
    again = kAgain;
    while (done < last + kAfterwards)
      if (!move_one()) rl::yield(1, $);
  }

  void Coordinate() {
    if (stop($).load(rl::mo_relaxed) == 0) {
      if (rl::rand(8) == 0) stop($).store(1, rl::mo_relaxed);
      return;
    }
    unsigned least = kTogether + 1;
    for (auto& of_rank : started) {
      const unsigned said = of_rank($).load(rl::mo_relaxed);
      least = said < least ? said : least;
    }
    if (least > 0) resume($).store(least, rl::mo_relaxed);
  }

  // Of a row more may be packed than there are slots: then the mistake leaves `packed` ahead.
  void Skip(unsigned me, unsigned& first) {
    if (kMistake == Mistake::kNothingSkipped) return;
    first += kMistake == Mistake::kSlotsSkipped ? kSlots : kMostPacked;
    if (kMistake != Mistake::kSlotsSkipped) {
      words[me].packed($).store(first, rl::mo_release);
      words[me].reduced($).store(first, rl::mo_release);
    }
    if (kMistake != Mistake::kTakenStays) words[me].taken($).store(first, rl::mo_release);
  }

  // --- one bucket

  bool Step(unsigned me, Stream& s) {
    if (!s.in_row() && s.taken < s.reduced && All(&Words::reduced, s.first + s.taken + 1)) {
      Take(me, s);
    } else if (s.reduced < s.packed && All(&Words::packed, s.first + s.reduced + 1)) {
      if (s.reduced == 0) CheckBucket(s);
      s.in_row() ? Meet(me, s) : Reduce(me, s);
    } else if (s.packed < kChunks && CanPack(s)) {
      Pack(me, s);
    } else {
      return false;
    }
    return true;
  }

  bool CanPack(const Stream& s) {
    if (s.in_row()) return All(&Words::taken, s.first);
    const unsigned chunk = s.first + s.packed;
    return chunk < kSlots || All(&Words::taken, chunk + 1 - kSlots);
  }

  void CheckBucket(const Stream& s) {
    for (auto& of_rank : bucket)
      RL_ASSERT(of_rank[s.first % kSlots]($).load(rl::mo_relaxed) == s.word());
  }

  void Pack(unsigned me, Stream& s) {
    if (s.packed == 0) bucket[me][s.first % kSlots]($).store(s.word(), rl::mo_relaxed);
    const unsigned slot = (s.first + s.packed) % kSlots;
    for (unsigned p = 0; p < kRanks && !s.in_row(); ++p)
      if (p != me) slots[me][slot][p]($) = Value(me, s.number, s.packed, p);
    if (s.in_row()) rows[me][s.packed]($) = Value(me, s.number, s.packed, 0);
    words[me].packed($).store(s.first + ++s.packed, rl::mo_release);
  }

  void Reduce(unsigned me, Stream& s) {
    const unsigned slot = (s.first + s.reduced) % kSlots;
    int sum = Value(me, s.number, s.reduced, me);
    for (unsigned r = 0; r < kRanks; ++r)
      if (r != me) sum += slots[r][slot][me]($);
    RL_ASSERT(sum == Sum(s.number, s.reduced, me));
    slots[(me + 1) % kRanks][slot][me]($) = sum;
    words[me].reduced($).store(s.first + ++s.reduced, rl::mo_release);
  }

  void Take(unsigned me, Stream& s) {
    const unsigned slot = (s.first + s.taken) % kSlots;
    for (unsigned p = 0; p < kRanks; ++p)
      if (p != me) RL_ASSERT(slots[(p + 1) % kRanks][slot][p]($) == Sum(s.number, s.taken, p));
    words[me].taken($).store(s.first + ++s.taken, rl::mo_release);
  }

  void Meet(unsigned me, Stream& s) {
    for (unsigned r = 0; r < kRanks; ++r)
      RL_ASSERT(rows[r][s.reduced]($) == Value(r, s.number, s.reduced, 0));
    s.taken = ++s.reduced;
    words[me].reduced($).store(s.first + s.reduced, rl::mo_release);
    words[me].taken($).store(s.first + s.taken, rl::mo_release);
  }
};

template <Mistake kMistake, Form kForm>
bool Right(const char* what) {
  return model::Check<Lane<kMistake, kForm>>(what, kMistake == Mistake::kNone, 60000);
}

}  // namespace

int main() {
  using enum Form;
  bool right = Right<Mistake::kNone, kInSlots>("buckets in slots are taken back");
  right = Right<Mistake::kNone, kInRow>("rows in memory of their own are taken back") && right;
  right = Right<Mistake::kNone, kInRowThenSlots>("a row is taken back, slots follow") && right;
  // Each of these is needed:
  right = Right<Mistake::kNothingSkipped, kInSlots>("chunks taken back are not skipped") && right;
  right = Right<Mistake::kSlotsSkipped, kInRow>("of a row only the slots are skipped") && right;
  right = Right<Mistake::kTakenStays, kInSlots>("what is skipped is not taken") && right;
  right = Right<Mistake::kSkipsAtOnce, kInSlots>("skipped before its turn has come") && right;
  right = Right<Mistake::kGoesOn, kInSlots>("buckets move after the stop") && right;
  right = Right<Mistake::kSaysTooLittle, kInSlots>("a rank says what is done alone") && right;
  return right ? 0 : 1;
}
