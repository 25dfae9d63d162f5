// Reducing in place, and giving that up (runtime/transport/lane_stream.cc). Two buckets follow each
// other; in each, every rank says in its first chunk where its tensor lies (0: nowhere), and all
// reduce in place or all stream. Checked: nobody touches a tensor or a slot while another rank
// writes to it, all come to the same verdict, sums are right, and nobody waits for ever.
#include "model.h"

namespace {

constexpr int kRanks = 2, kBuckets = 2, kChunks = 3, kSlots = 2;

enum class Mistake {
  kNone,
  kRelaxedPacked,
  kRelaxedReduced,
  kNothingSkipped,
  kSaysItAgain,
  kAsksTwice
};

// `kClaims`: a digit for each bucket and rank, what it says.
template <Mistake kMistake, int kClaims>
struct Lane : rl::test_suite<Lane<kMistake, kClaims>, kRanks>, model::LaneWords<kRanks> {
  rl::atomic<unsigned> layouts[kRanks][kSlots];
  rl::var<int> tensors[kRanks][kChunks][kRanks];  // a part for each rank
  rl::var<int> slots[kRanks][kSlots][kRanks];

  // One rank on its way through one bucket.
  struct Stream {
    unsigned me, first, layout, chunks, packed, reduced, taken;
    bool whole, checked;
  };

  void before() {
    Clear();
    for (auto& of_rank : layouts)
      for (auto& layout : of_rank) layout($) = 0;
  }

  static int Value(unsigned rank, unsigned chunk, int part) {
    return static_cast<int>(chunk) * 100 + part * 10 + static_cast<int>(rank) + 1;
  }
  static unsigned Claim(int bucket, unsigned rank) {
    int digits = kClaims;
    for (int skip = bucket * kRanks + static_cast<int>(rank); skip > 0; --skip) digits /= 10;
    return static_cast<unsigned>(digits % 10);
  }
  static rl::memory_order Release(Mistake mistake) {
    return kMistake == mistake ? rl::mo_relaxed : rl::mo_release;
  }

  void thread(unsigned me) {
    unsigned first = 0;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      for (unsigned c = 0; c < kChunks; ++c)
        for (int p = 0; p < kRanks; ++p) tensors[me][c][p]($) = Value(me, c, p);
      const unsigned layout = Claim(bucket, me);
      Stream s{me, first, layout, layout != 0 ? 1u : kChunks, 0, 0, 0, layout != 0, false};
      while (s.taken < s.chunks)
        if (!Step(s)) rl::yield(1, $);
      for (unsigned c = 0; c < kChunks; ++c)
        for (int p = 0; p < kRanks; ++p)
          RL_ASSERT(tensors[me][c][p]($) == Value(0, c, p) + Value(1, c, p));
      first = s.first + s.chunks;
    }
  }

  bool CanTake(const Stream& s) {
    return s.taken < s.reduced && All(&Words::reduced, s.first + s.taken + 1);
  }
  bool CanReduce(const Stream& s) {
    return s.reduced < s.packed && All(&Words::packed, s.first + s.reduced + 1);
  }

  bool Step(Stream& s) {
    bool can_take = CanTake(s), can_reduce = !can_take && CanReduce(s);
    if (!s.checked && (can_take || can_reduce)) {
      Check(s);
      return true;
    }
    if (kMistake == Mistake::kAsksTwice) {  // what came true since is done unchecked
      can_take = CanTake(s);
      can_reduce = CanReduce(s);
    }
    if (can_take) {
      Take(s);
    } else if (can_reduce) {
      Reduce(s);
    } else if (s.packed < s.chunks && (s.first + s.packed < kSlots ||
                                       All(&Words::taken, s.first + s.packed + 1 - kSlots))) {
      Pack(s);
    } else {
      return false;
    }
    return true;
  }

  void Check(Stream& s) {
    s.checked = true;
    bool alike = true;
    for (auto& of_rank : layouts)
      alike = of_rank[s.first % kSlots]($).load(rl::mo_relaxed) == s.layout && alike;
    if (alike) return;
    s.whole = false;
    s.chunks = kChunks;
    s.first += kMistake == Mistake::kNothingSkipped ? 1 : kSlots;
    s.packed = 0;
    if (kMistake == Mistake::kSaysItAgain)
      layouts[s.me][s.first % kSlots]($).store(0, rl::mo_relaxed);
    words[s.me].packed($).store(s.first, rl::mo_release);
    words[s.me].reduced($).store(s.first, rl::mo_release);
    words[s.me].taken($).store(s.first, rl::mo_release);
  }

  void Pack(Stream& s) {
    if (!s.checked && s.packed == 0)
      layouts[s.me][s.first % kSlots]($).store(s.layout, rl::mo_relaxed);
    for (unsigned p = 0; p < kRanks && !s.whole; ++p) {
      if (p == s.me) continue;
      slots[s.me][(s.first + s.packed) % kSlots][p]($) = tensors[s.me][s.packed][p]($);
    }
    words[s.me].packed($).store(s.first + ++s.packed, Release(Mistake::kRelaxedPacked));
  }

  void Reduce(Stream& s) {
    if (s.whole) {
      for (unsigned c = 0; c < kChunks; ++c) {
        int sum = 0;
        for (auto& tensor : tensors) sum += tensor[c][s.me]($);
        for (auto& tensor : tensors) tensor[c][s.me]($) = sum;
      }
    } else {
      int sum = tensors[s.me][s.reduced][s.me]($);
      const unsigned slot = (s.first + s.reduced) % kSlots;
      for (unsigned r = 0; r < kRanks; ++r)
        if (r != s.me) sum += slots[r][slot][s.me]($);
      tensors[s.me][s.reduced][s.me]($) = sum;
      slots[(s.me + 1) % kRanks][slot][s.me]($) = sum;
    }
    words[s.me].reduced($).store(s.first + ++s.reduced, Release(Mistake::kRelaxedReduced));
  }

  void Take(Stream& s) {
    const unsigned slot = (s.first + s.taken) % kSlots;
    for (unsigned p = 0; p < kRanks && !s.whole; ++p) {
      if (p == s.me) continue;
      tensors[s.me][s.taken][p]($) = slots[(p + 1) % kRanks][slot][p]($);
    }
    words[s.me].taken($).store(s.first + ++s.taken, rl::mo_release);
  }
};

template <Mistake kMistake, int kClaims>
bool Right(const char* what) {
  return model::Check<Lane<kMistake, kClaims>>(what, kMistake == Mistake::kNone, 100000);
}

}  // namespace

int main() {
  bool right = Right<Mistake::kNone, 1111>("in place twice");
  right = Right<Mistake::kNone, 11>("in place, then streamed") && right;
  right = Right<Mistake::kNone, 1110>("one rank cannot, then in place") && right;
  right = Right<Mistake::kNone, 1001>("one rank cannot, then the other") && right;
  right = Right<Mistake::kNone, 2121>("both lie elsewhere, twice") && right;
  // Each of these is needed:
  right = Right<Mistake::kRelaxedPacked, 1111>("packed without release") && right;
  right = Right<Mistake::kRelaxedReduced, 1111>("reduced without release") && right;
  right = Right<Mistake::kNothingSkipped, 1110>("chunks given up are not skipped") && right;
  right = Right<Mistake::kSaysItAgain, 1110>("what was said is written over") && right;
  right = Right<Mistake::kAsksTwice, 1110>("asked again after the check") && right;
  return right ? 0 : 1;
}
