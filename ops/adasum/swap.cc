// Adasum over a lane: the same halving, without messages for the values and without scratch.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "ops/adasum/share.h"

namespace horon::adasum {

LaneRow Share::RowOf(int peer, size_t level, const Ranges& give, const Ranges& keep) const {
  LaneRow row;
  row.parts.reserve(values_.size());
  row.partner = peer;
  row.bucket = BucketWord(stage_->segments(), ~level);  // a sum's begins with its tensors' number
  for (size_t i = 0; i < values_.size(); ++i) {
    const int64_t pieces = int64_t{2} << level;
    row.parts.push_back({Value(i, give[i].begin), Output(i, give[i].begin), give[i].count,
                         keep[i].count, (segment(i).count + pieces - 1) / pieces});
  }
  return row;
}

Task Share::Swap(const Column& column, const Meeting& meeting, bool top) {
  Split split = SplitAt(column, meeting);
  const Ranges& keep = split.keep;
  const int peer = column.rank_of[static_cast<size_t>(meeting.peer)];
  const bool first = meeting.first;
  const LaneRow row = RowOf(peer, static_cast<size_t>(meeting.level), split.give, keep);
  Lane& lane = *comm().lane();
  LaneSwap swap = lane.MakeSwap(element_, row, LaneSwap::Passes::kSeveral);

  dots_.assign(values_.size(), WideDots{});
  const auto look = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
    const std::byte* mine = Value(i, keep[i].begin + at);
    AddDots(dtype_, first ? mine : theirs, first ? theirs : mine, count, &dots_[i]);
  };
  HORON_CO_TRY(co_await lane.Swap(swap, LaneSwap::Pass::kMore, std::cref(look)));
  HORON_CO_TRY(co_await SumDots(column, std::move(split.holders)));
  Weigh(meeting);
  pending_ = false;

  const int64_t block = kLaneBlockBytes / element_;
  const double scale = top ? stage_->postscale() : 1.0;
  const auto combine = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
    for (int64_t done = 0; done < count; done += block) {
      const int64_t n = std::min(block, count - done), begin = keep[i].begin + at + done;
      const std::byte* mine = Value(i, begin);
      std::byte *other = theirs + done * element_, *output = Output(i, begin);
      std::byte* const back = top && scale == 1.0 ? other : nullptr;
      adasum::Combine(dtype_, weights_[i], first ? mine : other, first ? other : mine, output, n,
                      back);
      if (!top || back != nullptr) continue;
      ScaleInto(dtype_, scale, output, output, n);
      std::memcpy(other, output, static_cast<size_t>(n * element_));
    }
  };
  const LaneSwap::Pass pass = top ? LaneSwap::Pass::kLastBack : LaneSwap::Pass::kLast;
  HORON_CO_TRY(co_await lane.Swap(swap, pass, std::cref(combine)));
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = segment(i).output;
  if (top) co_return Status::Ok();
  halvings_.push_back({peer, std::move(own_), std::move(split.give)});
  own_ = std::move(split.keep);
  co_return Status::Ok();
}

Task Share::SwapBack() {
  Lane& lane = *comm().lane();
  while (!halvings_.empty()) {
    const Halving last = std::move(halvings_.back());
    halvings_.pop_back();
    const LaneRow row = RowOf(last.peer, halvings_.size(), own_, last.given);
    LaneSwap swap = lane.MakeSwap(element_, row, LaneSwap::Passes::kOne);
    const auto copy = [&](size_t i, int64_t at, std::byte* theirs, int64_t count) {
      std::memcpy(Output(i, last.given[i].begin + at), theirs,
                  static_cast<size_t>(count * element_));
    };
    HORON_CO_TRY(co_await lane.Swap(swap, LaneSwap::Pass::kLast, std::cref(copy)));
    own_ = last.whole;
  }
  co_return Status::Ok();
}

}  // namespace horon::adasum
