// Mixing where ranks share memory: one copy of each rank's values, and one pass that mixes.
#include <cstring>
#include <map>
#include <utility>

#include "ops/gossip/mix.h"
#include "runtime/transport/lane.h"

namespace horon::gossip {
namespace {

constexpr uint64_t kRound = 0x676f73736970;  // tells a bucket of this from others of its tensors

// The weights that ranks give those they send to, of all parts: what each rank shows the others
// before its values, and what it has read of theirs.
class SendWeights {
 public:
  SendWeights(const std::vector<Part>& parts, int ranks) : ranks_(static_cast<size_t>(ranks)) {
    mine_.resize(parts.size() * ranks_);
    for (size_t p = 0; p < parts.size(); ++p) {
      for (const Neighbor& to : parts[p].row.to) mine_[At(p, to.rank)] = to.weight;
      for (const Neighbor& from : parts[p].row.from) theirs_[from.rank].resize(mine_.size());
    }
  }
  const std::byte* mine() const { return reinterpret_cast<const std::byte*>(mine_.data()); }
  int64_t bytes() const { return static_cast<int64_t>(mine_.size() * sizeof(double)); }
  // find(rank): where the `bytes` of that rank's weights lie that begin with the at-th.
  template <typename Find>
  void Read(int64_t at, int64_t bytes, Find find) {
    for (auto& [rank, weights] : theirs_)
      std::memcpy(reinterpret_cast<std::byte*>(weights.data()) + at, find(rank),
                  static_cast<size_t>(bytes));
  }
  double Of(int from, size_t part, int to) const { return theirs_.at(from)[At(part, to)]; }

 private:
  size_t At(size_t part, int rank) const { return part * ranks_ + static_cast<size_t>(rank); }

  size_t ranks_;
  std::vector<double> mine_;
  std::map<int, std::vector<double>> theirs_;
};

Task MixOverLane(Stage& stage, std::vector<Part> parts, Mixing mixing) {
  Lane& lane = *stage.comm().lane();
  const int me = stage.comm().rank();
  const int64_t element = SizeOf(mixing.dtype);
  SendWeights weights(parts, stage.comm().size());
  LaneRow row;
  row.partner = me;  // slots of others are found from mine
  row.bucket = BucketWord(stage.segments(), kRound);
  const auto show = [&row](const std::byte* values, int64_t count) {
    row.parts.push_back({values, nullptr, count, count, count});
  };
  const size_t first = mixing.weights_travel ? 1 : 0;
  if (mixing.weights_travel) show(weights.mine(), weights.bytes() / element);
  for (const Part& part : parts) show(part.input, part.count);

  LaneSwap swap = lane.MakeSwap(element, row, LaneSwap::Passes::kOne);
  std::vector<Heard> others;
  LaneSwap::Meet mix = [&](size_t i, int64_t at, std::byte* shown, int64_t count) {
    if (i < first) {
      weights.Read(at * element, count * element, [&](int rank) { return swap.Of(rank, shown); });
      return;
    }
    const Part& part = parts[i - first];
    others.clear();
    for (const Neighbor& from : part.row.from) {
      const double theirs = first > 0 ? weights.Of(from.rank, i - first, me) : 1.0;
      others.push_back({swap.Of(from.rank, shown), from.weight * theirs});
    }
    MixHeard(mixing.dtype, mixing.factor, part.row.self, part.input + at * element, others,
             part.output + at * element, count);
  };
  co_return co_await lane.Swap(swap, LaneSwap::Pass::kLast, std::move(mix));
}

}  // namespace

bool MixesOverLane(Stage& stage) {
  const Lane* const lane = stage.comm().lane();
  return lane != nullptr && lane->CanSwap(SizeOf(stage.dtype()));
}

Task MixBucket(Stage& stage, std::vector<Part> parts, Mixing mixing) {
  CountSent(stage, stage.comm(), parts, mixing.dtype);
  return MixesOverLane(stage) ? MixOverLane(stage, std::move(parts), mixing)
                              : MixParts(stage.comm(), std::move(parts), mixing);
}

}  // namespace horon::gossip
