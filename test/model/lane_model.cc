// The lanes' counters (runtime/transport/lane_stream.cc): three monotonic words a rank, one writer
// each, and slots that are written again. Checked: nobody reads a slot while it is written, every
// rank takes the sum of what all packed, and nobody waits for ever.
#include "model.h"

namespace {

constexpr int kRanks = 2, kChunks = 3, kSlots = 2;

enum class Mistake { kNone, kRelaxedPacked, kRelaxedReduced, kRelaxedTaken, kEarlyReuse };

template <Mistake kMistake, int kInline>
struct Lane : rl::test_suite<Lane<kMistake, kInline>, kRanks>, model::LaneWords<kRanks> {
  rl::var<int> slots[kRanks][kSlots][kRanks];  // a part for each rank

  void before() { Clear(); }

  static int Value(int rank, unsigned chunk, int part) {
    return static_cast<int>(chunk) * 100 + part * 10 + rank + 1;
  }
  static int Sum(unsigned chunk, int part) {
    int sum = 0;
    for (int r = 0; r < kRanks; ++r) sum += Value(r, chunk, part);
    return sum;
  }
  static rl::memory_order Release(Mistake mistake) {
    return kMistake == mistake ? rl::mo_relaxed : rl::mo_release;
  }

  void thread(unsigned me) {
    const int mine = static_cast<int>(me);
    unsigned packed = 0, reduced = 0, taken = 0;
    while (taken < kChunks) {
      const bool can_take = kInline ? taken < packed && All(&Words::packed, taken + 1)
                                    : taken < reduced && All(&Words::reduced, taken + 1);
      const unsigned needed = packed - kSlots + (kMistake == Mistake::kEarlyReuse ? 0 : 1);
      if (can_take) {
        Take(mine, taken++);
        words[me].taken($).store(taken, Release(Mistake::kRelaxedTaken));
      } else if (!kInline && reduced < packed && All(&Words::packed, reduced + 1)) {
        int sum = 0;
        for (int r = 0; r < kRanks; ++r) sum += slots[r][reduced % kSlots][mine]($);
        slots[mine][reduced % kSlots][mine]($) = sum;
        words[me].reduced($).store(++reduced, Release(Mistake::kRelaxedReduced));
      } else if (packed < kChunks && (packed < kSlots || All(&Words::taken, needed))) {
        for (int p = 0; p < kRanks; ++p)
          slots[mine][packed % kSlots][p]($) = Value(mine, packed, p);
        words[me].packed($).store(++packed, Release(Mistake::kRelaxedPacked));
      } else {
        rl::yield(1, $);
      }
    }
  }

  void Take(int, unsigned chunk) {
    for (int part = 0; part < kRanks; ++part) {
      int result = 0;
      if (kInline) {  // small buckets: everybody reduces everything
        for (int r = 0; r < kRanks; ++r) result += slots[r][chunk % kSlots][part]($);
      } else {
        result = slots[part][chunk % kSlots][part]($);
      }
      RL_ASSERT(result == Sum(chunk, part));
    }
  }
};

}  // namespace

int main() {
  bool right = model::Check<Lane<Mistake::kNone, 0>>("a lane", true, 200000);
  right = model::Check<Lane<Mistake::kNone, 1>>("a lane with small buckets", true, 200000) && right;
  // Each of these orders is needed:
  right = model::Check<Lane<Mistake::kRelaxedPacked, 0>>("packed without release", false, 200000) &&
          right;
  right =
      model::Check<Lane<Mistake::kRelaxedReduced, 0>>("reduced without release", false, 200000) &&
      right;
  right = model::Check<Lane<Mistake::kRelaxedTaken, 0>>("taken without release", false, 200000) &&
          right;
  right =
      model::Check<Lane<Mistake::kEarlyReuse, 0>>("a slot used again too early", false, 200000) &&
      right;
  return right ? 0 : 1;
}
