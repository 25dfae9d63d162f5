// Adasum over a lane: the same halving, without messages for the values and without scratch.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "ops/adasum/share.h"

namespace horon::adasum {

// Nothing is given, or kept, of ranges that are empty.
LaneRow Share::RowOf(int peer, Level level, const Ranges& give, const Ranges& keep) const {
  LaneRow row;
  row.parts.reserve(values_.size());
  row.partner = peer;
  // A sum's word begins with its tensors' number.
  const uint64_t which = uint64_t{2} * static_cast<uint64_t>(level.level) + (level.fold ? 1 : 0);
  row.bucket = BucketWord(stage_->segments(), ~which);
  const int64_t pieces = int64_t{2} << level.level;
  for (size_t i = 0; i < values_.size(); ++i) {
    LanePart part;
    part.most = (segment(i).count + pieces - 1) / pieces;
    if (!give.empty()) {
      part.given = Value(i, give[i].begin);
      part.back = Output(i, give[i].begin);
      part.gives = give[i].count;
    }
    if (!keep.empty()) part.keeps = keep[i].count;
    row.parts.push_back(part);
  }
  return row;
}

Task Share::Swap(const Column& column, const Meeting* meeting, Level level) {
  Split split;
  int peer = rank();
  if (meeting != nullptr) {
    split = SplitAt(column, *meeting);
    peer = column.rank_of[static_cast<size_t>(meeting->peer)];
    if (level.fold) split.holders.assign(1, peer);
  }
  const Ranges& keep = split.keep;
  const bool first = meeting != nullptr && meeting->first;
  LaneRow row = RowOf(peer, level, split.give, keep);
  // What the other one makes of the half that a folded rank gives stays there.
  for (LanePart& part : row.parts)
    if (level.fold && !first) part.back = nullptr;
  Lane& lane = *comm().lane();
  LaneSwap swap = lane.MakeSwap(element_, row, LaneSwap::Passes::kSeveral);

  dots_.assign(values_.size(), WideDots{});
  const auto look = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
    const std::byte* mine = Value(i, keep[i].begin + at);
    AddDots(dtype_, first ? mine : theirs, first ? theirs : mine, count, &dots_[i]);
  };
  HORON_CO_TRY(co_await lane.Swap(swap, LaneSwap::Pass::kMore, std::cref(look)));
  if (meeting != nullptr) {
    HORON_CO_TRY(co_await SumDots(column, std::move(split.holders)));
    Weigh(*meeting);
    pending_ = false;
  }

  const int64_t block = kLaneBlockBytes / element_;
  const double scale = level.top ? stage_->postscale() : 1.0;
  const bool backs = level.backs || (level.fold && !first);  // what I combine goes to the peer
  const auto combine = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
    for (int64_t done = 0; done < count; done += block) {
      const int64_t n = std::min(block, count - done), begin = keep[i].begin + at + done;
      const std::byte* mine = Value(i, begin);
      std::byte *other = theirs + done * element_, *output = Output(i, begin);
      adasum::Combine(dtype_, weights_[i], first ? mine : other, first ? other : mine, output, n,
                      backs && scale == 1.0 ? other : nullptr);
      if (scale == 1.0) continue;
      ScaleInto(dtype_, scale, output, output, n);
      if (backs) std::memcpy(other, output, static_cast<size_t>(n * element_));
    }
  };
  const bool back = level.backs || level.fold;
  const LaneSwap::Pass pass = back ? LaneSwap::Pass::kLastBack : LaneSwap::Pass::kLast;
  HORON_CO_TRY(co_await lane.Swap(swap, pass, std::cref(combine)));
  if (meeting == nullptr) co_return Status::Ok();
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = segment(i).output;
  if (back) co_return Status::Ok();
  halvings_.push_back({peer, std::move(own_), std::move(split.give)});
  own_ = std::move(split.keep);
  co_return Status::Ok();
}

Task Share::SwapBack(const Column& column, int levels, std::optional<int> folded) {
  Lane& lane = *comm().lane();
  // Of two participants that meet first the lower one has the lower half.
  const Halves halves = folded ? Halved(own_) : Halves{};
  const auto holder = [&](int half) {
    return column.rank_of[static_cast<size_t>((*folded & ~1) + half)];
  };
  for (int level = levels - 1; level >= 0; --level) {
    Halving last{rank(), {}, {}};
    if (!folded) {
      last = std::move(halvings_.back());
      halvings_.pop_back();
    } else if (level == 0) {
      last.peer = holder(0);
      last.given = halves.upper;  // as long as any of the two
    }
    const LaneRow row = RowOf(last.peer, {.level = level}, folded ? Ranges{} : own_, last.given);
    LaneSwap swap = lane.MakeSwap(element_, row, LaneSwap::Passes::kOne);
    const auto copy = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
      const auto take = [&](const Range& range, const std::byte* values) {
        const int64_t n = std::min(count, range.count - at);
        if (n <= 0) return;
        std::memcpy(Output(i, range.begin + at), values, static_cast<size_t>(n * element_));
      };
      if (!folded) return take(last.given[i], theirs);
      take(halves.lower[i], theirs);
      take(halves.upper[i], swap.Of(holder(1), theirs));
    };
    HORON_CO_TRY(co_await lane.Swap(swap, LaneSwap::Pass::kLast, std::cref(copy)));
    if (!folded) own_ = last.whole;
  }
  co_return Status::Ok();
}

}  // namespace horon::adasum
