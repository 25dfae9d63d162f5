// Share: what one rank holds of a bucket while the bucket goes up and down the tree.
//
// Going up, two ranks halve what they hold: each keeps one half, gets the other rank's values of
// it, and combines. Going down they hand each other what they finished. Inputs are read where they
// lie and results are written into the outputs; beside them there is one scratch buffer for what
// the peer sent, half of the bucket where halves are exchanged.
//
// The inner products of a tensor are summed over its pieces in one fixed order, whichever ranks
// hold these: all paths that follow the same tree give the same bits. Lives in Op::Run's frame;
// all ranks of the tree make matching calls.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "ops/adasum/exchange.h"
#include "ops/adasum/ranges.h"
#include "ops/adasum/tree.h"
#include "ops/adasum/wide.h"
#include "runtime/op/op.h"
#include "runtime/transport/lane.h"

namespace horon::adasum {

// Participants of a tree as ranks of the communicator.
struct Column {
  RecycledVector<int> rank_of;  // by participant
  Communicator* row = nullptr;  // who holds the other slices of my participant; null: nobody
};

inline int IndexOf(std::span<const int> members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

class Share {
 public:
  Share(Stage& stage, int64_t chunk_bytes, ZeroPolicy zeros);

  Communicator& comm() const { return stage_->comm(); }
  int rank() const { return comm().rank(); }

  // Outputs exist, the input is scaled, everything is held.
  Status Begin();
  // Scales the result where it is held, before it is handed out.
  void End();

  // Up. Each keeps one half of what it holds.
  Task Halve(const Column& column, const Meeting& meeting);
  // Both work on one half; then the first holds the whole combination, the second nothing.
  Task Merge(const Column& column, const Meeting& meeting);
  // Both send all they hold and combine it all; in a fold the second only sends, the first only
  // receives. Scratch: all that is held.
  Task MeetWhole(const Column& column, const Meeting& meeting, bool fold);

  // Up over the lane of comm(), which is this bucket's, by all its ranks at once: halves are met
  // where the peer has packed them, once for their inner products and once to be combined. No
  // scratch. `meeting`: null for those who meet nobody at this level, but see to its row.
  struct Level {
    int level = 0;
    bool fold = false;   // before the tree proper: the first gets the other half back
    bool top = false;    // the result is scaled
    bool backs = false;  // at the top: each gets the other half back, the way down has begun
  };
  Task Swap(const Column& column, const Meeting* meeting, Level level);
  // Down after it: what `levels` levels have given away comes back, the last one first. `folded`:
  // the rank is folded into this participant, and gets the halves of it and of its peer with them.
  Task SwapBack(const Column& column, int levels, std::optional<int> folded);

  // Down. Finished halves are exchanged, the last Halve first, until `depth` of them are left.
  Task Unwind(size_t depth);
  size_t depth() const { return halvings_.size(); }
  // All of `held` from one rank to another.
  Task Give(int to);
  Task Take(int from, Ranges held);
  Ranges held() const { return own_; }
  // The outputs, whole.
  RecycledVector<Span> OutputSpans() const;

  // Inside a group of ranks, elementwise: every tensor is cut into `owners` slices, and the first
  // `owners` of `members` hold scale * the sum of theirs afterwards.
  Task ReduceSlices(std::span<const int> members, int owners, double scale);
  // Everybody gets the owners' slices.
  Task GatherSlices(std::span<const int> members, int owners);

  // Along rings, each an order of all ranks, all rings at once: afterwards everybody has
  // everything, and End has been done. Every tensor is cut into a chunk for each ring and rank.
  Task GoRound(std::span<const RecycledVector<int>> rings);

 private:
  struct Halving {
    int peer;
    Ranges whole, given;
  };
  const Segment& segment(size_t i) const { return stage_->segments()[i]; }
  std::byte* Output(size_t i, int64_t at) const { return segment(i).output + at * element_; }
  const std::byte* Value(size_t i, int64_t at) const { return values_[i] + at * element_; }
  std::byte* Scratch(int64_t at) const { return scratch_.data() + at * element_; }

  Status Reserve(int64_t elements);
  // The ranges are lent until the flow has ended.
  Flow FromValues(const Ranges& ranges) const;
  Flow FromOutputs(const Ranges& ranges) const;
  Flow IntoScratch(const Ranges& ranges) const;
  Ranges Slice(int owners, int k) const;
  struct Hop;
  void CombineRound(const Ranges& chunk, int64_t at, double leaves);
  void ScaleRound(const Ranges& chunk);

  struct Split {  // what is held, at a meeting
    Ranges keep, give;
    RecycledVector<int> holders;  // of the other pieces of the two vectors, in the order of levels
  };
  Split SplitAt(const Column& column, const Meeting& meeting) const;
  LaneRow RowOf(int peer, Level level, const Ranges& give, const Ranges& keep) const;
  Task CollectDots(int peer, bool first, Ranges give, Ranges keep, int depth);
  Task SumDots(const Column& column, RecycledVector<int> holders);
  Task SumDotsOverRow(Communicator& row);
  void Weigh(const Meeting& meeting);
  void Combine(int64_t from, int64_t to);
  void Settle();
  Task Trade(int peer, Ranges give, Ranges take);
  Task ReduceChunk(std::span<const int> members, int owners, double scale, Range chunk);

  Stage* stage_;
  DataType dtype_;
  int64_t element_;  // bytes
  int64_t chunk_;    // elements
  ZeroPolicy zeros_;
  RecycledVector<const std::byte*> values_;  // by tensor, whole: the inputs, later the outputs
  Buffer scratch_;
  Ranges own_;
  RecycledVector<Halving> halvings_;
  // What is held is still to be combined with what lies in scratch. The arithmetic is put off until
  // the result is sent, which then comes from the cache.
  bool pending_ = false, first_ = false;
  RecycledVector<WideDots> dots_;    // by tensor
  RecycledVector<Weights> weights_;  // by tensor
};

}  // namespace horon::adasum
