// The gate inside a node (runtime/core/start_gate.cc, cargo.cc). Each rank packs what it gives to
// the batches that it starts into places, and says in words of the segment how far it has come; the
// first rank adds up what all have given, and says so in words of its own; then each unpacks, and
// its place is free. The schedule is left after the last batch that all have started: what was
// packed beyond is withdrawn, what all have still comes, and another schedule follows in the same
// words and places. Checked: words are read whole, a sum is that of one batch of one schedule,
// nobody touches a place while another rank writes to it, and nobody waits for ever. What the
// coordinator and the ranks tell each other orders nothing else.
#include "model.h"

namespace {

constexpr unsigned kRanks = 3, kPlaces = 2;
// Batches that may be started before the stop, and those of the schedule that follows.
constexpr unsigned kTogether = 3, kAfterwards = 3;

enum class Mistake {
  kNone,
  kNeverOdd,
  kRelaxedParts,
  kRelaxedVersion,
  kReadOnce,
  kAnySchedule,
  kPlaceTooMany,
  kPlacesStay,
  kSaidBeforePacked,
  kToldBeforeAdded
};

struct Words {
  rl::atomic<unsigned> version, schedule, plan, number;
};

struct Said {
  unsigned schedule, number;
};

template <Mistake kMistake>
struct Gate : rl::test_suite<Gate<kMistake>, kRanks> {
  Words started[kRanks], passed;
  rl::var<int> given[kRanks][kPlaces], sums[kPlaces];
  // Of the coordinator, and what each has started, plus one.
  rl::atomic<unsigned> stop, resume, mine[kRanks];

  // What a rank knows. Batches are counted from the beginning of their schedule.
  struct Rank {
    unsigned me;
    unsigned schedule = 1, places = 0;  // places that were given before this schedule
    unsigned started = 0, packed = 0, all = 0, delivered = 0;

    unsigned Place(unsigned number) const { return (places + number) % kPlaces; }
  };

  void before() {
    for (Words& words : started) Clear(words);
    Clear(passed);
    for (auto& of_rank : mine) of_rank($) = 0;
    stop($) = resume($) = 0;
  }
  static void Clear(Words& words) {
    words.version($) = words.schedule($) = words.plan($) = words.number($) = 0;
  }

  static int Value(unsigned rank, unsigned schedule, unsigned number) {
    return static_cast<int>(100 * schedule + 10 * number + rank + 1);
  }
  static int Sum(unsigned schedule, unsigned number) {
    int sum = 0;
    for (unsigned r = 0; r < kRanks; ++r) sum += Value(r, schedule, number);
    return sum;
  }

  // --- words

  static void Put(Words& words, unsigned schedule, unsigned number) {
    constexpr auto kParts =
        kMistake == Mistake::kRelaxedParts ? rl::mo_relaxed : rl::mo_release;
    const unsigned version = words.version($).load(rl::mo_relaxed);
    if (kMistake != Mistake::kNeverOdd) words.version($).store(version + 1, rl::mo_relaxed);
    words.schedule($).store(schedule, kParts);
    words.plan($).store(schedule + 10, kParts);
    words.number($).store(number, kParts);
    words.version($).store(version + 2, kMistake == Mistake::kRelaxedVersion ? rl::mo_relaxed
                                                                             : rl::mo_release);
  }

  // False: they are being written.
  static bool Get(Words& words, Said& said) {
    const unsigned version = words.version($).load(rl::mo_acquire);
    if (version % 2 != 0) return false;
    said.schedule = words.schedule($).load(rl::mo_acquire);
    const unsigned plan = words.plan($).load(rl::mo_acquire);
    said.number = words.number($).load(rl::mo_acquire);
    if (kMistake != Mistake::kReadOnce && words.version($).load(rl::mo_relaxed) != version)
      return false;
    RL_ASSERT(plan == (said.schedule == 0 ? 0 : said.schedule + 10));
    return true;
  }

  static unsigned NumberIn(const Rank& rank, const Said& said) {
    return said.schedule == rank.schedule || kMistake == Mistake::kAnySchedule ? said.number : 0;
  }

  // --- the gate

  bool Advance(Rank& rank) {
    bool moved = Publish(rank);
    moved = (rank.me == 0 ? ReadNode(rank) : ReadFirst(rank)) || moved;
    return Deliver(rank) || moved;
  }

  bool Publish(Rank& rank) {
    constexpr unsigned kMost = kPlaces + (kMistake == Mistake::kPlaceTooMany ? 1 : 0);
    unsigned to = rank.packed;
    while (to < rank.started && to - rank.delivered < kMost) ++to;
    if (to == rank.packed) return false;
    const auto say = [&] {
      if (rank.me != 0) Put(started[rank.me], rank.schedule, to);
    };
    if (kMistake == Mistake::kSaidBeforePacked) say();
    while (rank.packed < to) {
      ++rank.packed;
      given[rank.me][rank.Place(rank.packed)]($) = Value(rank.me, rank.schedule, rank.packed);
    }
    if (kMistake != Mistake::kSaidBeforePacked) say();
    return true;
  }

  bool ReadFirst(Rank& rank) {
    if (rank.all >= rank.packed) return false;
    Said said;
    if (!Get(passed, said)) return false;
    const unsigned number = NumberIn(rank, said);
    if (number <= rank.all) return false;
    rank.all = number;
    return true;
  }

  bool ReadNode(Rank& rank) {
    if (rank.all >= rank.packed) return false;
    unsigned least = rank.packed;
    for (unsigned r = 1; r < kRanks; ++r) {
      Said said;
      if (!Get(started[r], said)) return false;
      const unsigned number = NumberIn(rank, said);
      least = number < least ? number : least;
    }
    if (least <= rank.all) return false;
    if (kMistake == Mistake::kToldBeforeAdded) Put(passed, rank.schedule, least);
    while (rank.all < least) {
      const unsigned place = rank.Place(++rank.all);
      int sum = 0;
      for (auto& of_rank : given) sum += of_rank[place]($);
      sums[place]($) = sum;
    }
    if (kMistake != Mistake::kToldBeforeAdded) Put(passed, rank.schedule, least);
    return true;
  }

  bool Deliver(Rank& rank) {
    bool moved = false;
    for (; rank.delivered < rank.packed && rank.delivered < rank.all; moved = true) {
      ++rank.delivered;
      RL_ASSERT(sums[rank.Place(rank.delivered)]($) == Sum(rank.schedule, rank.delivered));
    }
    return moved;
  }

  // --- a rank

  void thread(unsigned me) {
    Rank rank{me};
    const unsigned starts = 1 + rl::rand(kTogether);
    for (bool said = false;;) {
      if (me == 0) Coordinate();
      if (!said && stop($).load(rl::mo_relaxed) == 1) {
        said = true;
        mine[me]($).store(rank.started + 1, rl::mo_relaxed);
      }
      if (said && resume($).load(rl::mo_relaxed) != 0) break;
      if (!said && rank.started < starts && rl::rand(2) == 0) ++rank.started;
      if (!Advance(rank)) rl::yield(1, $);
    }

    const unsigned last = resume($).load(rl::mo_relaxed) - 1;
    RL_ASSERT(rank.delivered <= last && last <= rank.started);
    const unsigned packed = rank.packed;
    rank.started = last;
    rank.packed = packed < last ? packed : last;
    while (rank.delivered < last)
      if (!Advance(rank)) rl::yield(1, $);

    rank.places += kMistake == Mistake::kPlacesStay && packed > last ? packed : last;
    rank.schedule = 2;
    rank.started = rank.packed = rank.all = rank.delivered = 0;
    while (rank.delivered < kAfterwards) {
      if (rank.started < kAfterwards && rl::rand(2) == 0) ++rank.started;
      if (!Advance(rank)) rl::yield(1, $);
    }
  }

  void Coordinate() {
    if (stop($).load(rl::mo_relaxed) == 0) {
      if (rl::rand(8) == 0) stop($).store(1, rl::mo_relaxed);
      return;
    }
    unsigned least = kTogether + 1;
    for (auto& of_rank : mine) {
      const unsigned said = of_rank($).load(rl::mo_relaxed);
      least = said < least ? said : least;
    }
    if (least > 0) resume($).store(least, rl::mo_relaxed);
  }
};

template <Mistake kMistake>
bool Right(const char* what) {
  return model::Check<Gate<kMistake>>(what, kMistake == Mistake::kNone, 100000);
}

}  // namespace

int main() {
  bool right = Right<Mistake::kNone>("the gate of a node");
  // Each of these is needed:
  right = Right<Mistake::kNeverOdd>("words are not marked while they change") && right;
  right = Right<Mistake::kRelaxedParts>("words without release") && right;
  right = Right<Mistake::kRelaxedVersion>("their version without release") && right;
  right = Right<Mistake::kReadOnce>("the version is not read again") && right;
  right = Right<Mistake::kAnySchedule>("words of any schedule are taken for this one's") && right;
  right = Right<Mistake::kPlaceTooMany>("a place is packed before it was unpacked") && right;
  right = Right<Mistake::kPlacesStay>("places of what is withdrawn are not given back") && right;
  right = Right<Mistake::kSaidBeforePacked>("a rank says it before it has packed") && right;
  right = Right<Mistake::kToldBeforeAdded>("the first rank tells before it has added") && right;
  return right ? 0 : 1;
}
