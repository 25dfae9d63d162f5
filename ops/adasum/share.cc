#include "ops/adasum/share.h"

#include <algorithm>
#include <utility>

#include "runtime/base/fault.h"

namespace horon::adasum {

Share::Share(Stage& stage, int64_t chunk_bytes, ZeroPolicy zeros)
    : stage_(&stage),
      dtype_(stage.dtype()),
      element_(SizeOf(stage.dtype())),
      chunk_(std::max<int64_t>(1, chunk_bytes / SizeOf(stage.dtype()))),
      zeros_(zeros) {}

Status Share::Begin() {
  FaultPoint(FaultPhase::kCopyIn);
  HORON_TRY(PrepareOutputs(*stage_));
  const double scale = stage_->prescale();
  values_.reserve(stage_->segments().size());
  own_.reserve(stage_->segments().size());
  for (const Segment& s : stage_->segments()) {
    if (scale != 1.0) ScaleInto(dtype_, scale, s.input, s.output, s.count);
    values_.push_back(scale != 1.0 ? s.output : s.input);
    own_.push_back({0, s.count});
  }
  return Status::Ok();
}

void Share::End() {
  const double scale = stage_->postscale();
  if (scale != 1.0) Settle();
  for (size_t i = 0; i < own_.size() && !pending_; ++i) {
    const Range& range = own_[i];
    if (scale == 1.0 && values_[i] == segment(i).output) continue;
    ScaleInto(dtype_, scale, Value(i, range.begin), Output(i, range.begin), range.count);
  }
  FaultPoint(FaultPhase::kCopyOut);
}

Status Share::Reserve(int64_t elements) {
  if (scratch_.bytes() >= elements * element_) return Status::Ok();
  scratch_ = Buffer();
  HORON_ASSIGN(scratch_, stage_->Scratch(elements * element_));
  return Status::Ok();
}

// --- up ------------------------------------------------------------------------------------------

Task Share::Halve(const Column& column, const Meeting& meeting) {
  Settle();
  Split split = SplitAt(column, meeting);
  const int peer = column.rank_of[static_cast<size_t>(meeting.peer)];
  HORON_CO_TRY(co_await CollectDots(peer, meeting.first, split.give, split.keep, 0));
  HORON_CO_TRY(co_await SumDots(column, std::move(split.holders)));
  halvings_.push_back({peer, std::move(own_), std::move(split.give)});
  own_ = std::move(split.keep);
  Weigh(meeting);
  co_return Status::Ok();
}

Share::Split Share::SplitAt(const Column& column, const Meeting& meeting) const {
  Halves halves = Halved(own_);
  if (!meeting.first) std::swap(halves.lower, halves.upper);
  // Of the two vectors, ranks that differ from me in the bits up to this level hold the other
  // pieces; the last halving made the smallest ones.
  const int me = meeting.peer ^ (1 << meeting.level);
  RecycledVector<int> holders;
  for (int bit = meeting.level; bit >= 0; --bit) {
    holders.push_back(column.rank_of[static_cast<size_t>(me ^ (1 << bit))]);
  }
  return {std::move(halves.lower), std::move(halves.upper), std::move(holders)};
}

Task Share::Merge(const Column& column, const Meeting& meeting) {
  Settle();
  const Ranges whole = own_;
  Halves halves = Halved(own_);
  if (!meeting.first) std::swap(halves.lower, halves.upper);
  const int peer = column.rank_of[static_cast<size_t>(meeting.peer)];
  HORON_CO_TRY(
      co_await CollectDots(peer, meeting.first, halves.upper, halves.lower, meeting.level));
  RecycledVector<int> holders(1, peer);
  HORON_CO_TRY(co_await SumDots(column, std::move(holders)));
  own_ = std::move(halves.lower);
  Weigh(meeting);
  if (meeting.first) {
    HORON_CO_TRY(co_await Take(peer, halves.upper));
    own_ = whole;
  } else {
    HORON_CO_TRY(co_await Give(peer));
    own_.clear();
  }
  co_return Status::Ok();
}

Task Share::MeetWhole(const Column& column, const Meeting& meeting, bool fold) {
  Settle();
  const int peer = column.rank_of[static_cast<size_t>(meeting.peer)];
  if (fold && !meeting.first) {
    HORON_CO_TRY(co_await Give(peer));
    own_.clear();
    co_return Status::Ok();
  }
  const Ranges give = fold ? Ranges{} : own_;
  HORON_CO_TRY(co_await CollectDots(peer, meeting.first, give, own_, meeting.level + 1));
  Weigh(meeting);
  co_return Status::Ok();
}

// --- down ----------------------------------------------------------------------------------------

Task Share::Unwind(size_t depth) {
  while (halvings_.size() > depth) {
    const Halving last = std::move(halvings_.back());
    halvings_.pop_back();
    HORON_CO_TRY(co_await Trade(last.peer, own_, last.given));
    own_ = last.whole;
  }
  Settle();
  co_return Status::Ok();
}

Task Share::Give(int to) { co_return co_await Trade(to, own_, Ranges{}); }

Task Share::Take(int from, Ranges held) {
  Settle();
  HORON_CO_TRY(co_await Trade(from, Ranges{}, held));
  own_ = std::move(held);
  co_return Status::Ok();
}

// What I hold goes to the peer, combined on the way if it is pending; what the peer has finished
// comes into the outputs.
Task Share::Trade(int peer, Ranges give, Ranges take) {
  Flow out = pending_ ? FromOutputs(give) : FromValues(give);
  if (pending_) out.work = [this](int64_t from, int64_t to) { Combine(from, to); };
  Flow in = FromOutputs(take);
  HORON_CO_TRY(co_await Exchange(comm(), peer, chunk_, std::move(out), std::move(in)));
  if (pending_) {
    pending_ = false;
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = segment(i).output;
  }
  co_return Status::Ok();
}

RecycledVector<Span> Share::OutputSpans() const {
  RecycledVector<Span> spans;
  for (const Segment& s : stage_->segments()) spans.push_back({s.output, s.count * element_});
  return spans;
}

// --- one combination -----------------------------------------------------------------------------

namespace {

// Adds up the dots of a row's pieces as its elements arrive, by whole blocks: how the row is cut
// into chunks leaves no trace in the bits.
class Arrivals {
 public:
  explicit Arrivals(const Ranges& pieces) : pieces_(&pieces), sums_(pieces.size()) {}

  // Elements up to `to` are there. add(piece, begin, count, at, sum): as AddDots.
  template <typename F>
  void Upto(int64_t to, F&& add) {
    for (; piece_ < pieces_->size(); ++piece_) {
      const Range& piece = (*pieces_)[piece_];
      int64_t fresh = std::min(piece.count, to - at_) - done_;
      if (done_ + fresh < piece.count) fresh -= fresh % kDotBlock;
      if (fresh > 0) add(piece_, piece.begin + done_, fresh, at_ + done_, &sums_[piece_]);
      done_ += std::max<int64_t>(fresh, 0);
      if (done_ < piece.count) return;
      at_ += piece.count;
      done_ = 0;
    }
  }

  // The 2^depth pieces of each tensor, added as neighbours, then neighbours of neighbours.
  RecycledVector<WideDots> Sums(int depth) && {
    for (int i = 0; i < depth; ++i) {
      for (size_t k = 0; k < sums_.size() / 2; ++k) {
        WideDots low = sums_[2 * k];
        low.Add(sums_[2 * k + 1]);
        sums_[k] = low;
      }
      sums_.resize(sums_.size() / 2);
    }
    return std::move(sums_);
  }

 private:
  const Ranges* pieces_;
  RecycledVector<WideDots> sums_;
  size_t piece_ = 0;
  int64_t at_ = 0, done_ = 0;  // where the piece begins in the row; what is summed of it
};

}  // namespace

// Sends `give`, receives the peer's values of `keep` into scratch, and sums their dots with mine.
Task Share::CollectDots(int peer, bool first, Ranges give, Ranges keep, int depth) {
  HORON_CO_TRY(Reserve(Total(keep)));
  const Ranges pieces = Pieces(keep, depth);
  Arrivals arrivals(pieces);
  const auto add = [&](size_t piece, int64_t begin, int64_t count, int64_t at, WideDots* sum) {
    const std::byte* mine = Value(piece >> depth, begin);
    const std::byte* theirs = Scratch(at);
    AddDots(dtype_, first ? mine : theirs, first ? theirs : mine, count, sum);
  };
  Flow out = FromValues(give), in = IntoScratch(keep);
  in.work = [&](int64_t, int64_t to) { arrivals.Upto(to, add); };
  HORON_CO_TRY(co_await Exchange(comm(), peer, chunk_, std::move(out), std::move(in)));
  dots_ = std::move(arrivals).Sums(depth);
  dots_.resize(values_.size());
  co_return Status::Ok();
}

void Share::Weigh(const Meeting& meeting) {
  weights_.clear();
  weights_.reserve(dots_.size());
  for (const WideDots& dots : dots_) {
    weights_.push_back(WeightsOf(dots, meeting.leaves_a, meeting.leaves_b, zeros_));
  }
  pending_ = true;
  first_ = meeting.first;
}

// Elements [from, to) of what is held.
void Share::Combine(int64_t from, int64_t to) {
  FaultPoint(FaultPhase::kReduce);
  ForPieces(own_, from, to, [this](size_t i, int64_t begin, int64_t count, int64_t at) {
    const std::byte *mine = Value(i, begin), *theirs = Scratch(at);
    adasum::Combine(dtype_, weights_[i], first_ ? mine : theirs, first_ ? theirs : mine,
                    Output(i, begin), count);
  });
}

void Share::Settle() {
  if (!pending_) return;
  Combine(0, Total(own_));
  pending_ = false;
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = segment(i).output;
}

// --- where chunks lie ----------------------------------------------------------------------------

Flow Share::FromValues(const Ranges& ranges) const {
  const auto lay = [this, &ranges](int64_t from, int64_t to, RecycledVector<Span>* places) {
    ForPieces(ranges, from, to, [&](size_t i, int64_t begin, int64_t count, int64_t) {
      // A send only reads; Span has one type for both directions.
      places->push_back({const_cast<std::byte*>(Value(i, begin)), count * element_});
    });
  };
  return {Total(ranges), lay};
}

Flow Share::FromOutputs(const Ranges& ranges) const {
  const auto lay = [this, &ranges](int64_t from, int64_t to, RecycledVector<Span>* places) {
    ForPieces(ranges, from, to, [&](size_t i, int64_t begin, int64_t count, int64_t) {
      places->push_back({Output(i, begin), count * element_});
    });
  };
  return {Total(ranges), lay};
}

Flow Share::IntoScratch(const Ranges& ranges) const {
  const auto lay = [this](int64_t from, int64_t to, RecycledVector<Span>* places) {
    places->push_back({Scratch(from), (to - from) * element_});
  };
  return {Total(ranges), lay};
}

}  // namespace horon::adasum
