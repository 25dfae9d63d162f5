#include "ops/adasum/gpu_tree.h"

#include <algorithm>
#include <utility>

namespace horon::adasum {
namespace {

constexpr int64_t kDots = sizeof(Dots), kWeight = sizeof(Coefficients);

// The bits of `number`, the lowest first: which part a rank holds once the lowest bit has chosen
// between halves, the next one between quarters.
int64_t Turned(int64_t number, int bits) {
  int64_t turned = 0;
  for (int bit = 0; bit < bits; ++bit) turned |= (number >> bit & 1) << (bits - 1 - bit);
  return turned;
}

}  // namespace

Task GpuTree::Run() {
  HORON_CO_TRY(PrepareOutputs(stage_));
  HORON_CO_TRY(Reserve());
  HORON_CO_TRY(Pack());
  Task up = Up();
  HORON_CO_TRY(co_await up);
  Task down = Down();
  HORON_CO_TRY(co_await down);
  co_return Unpack();
}

// --- memory --------------------------------------------------------------------------------------

Status GpuTree::Reserve() {
  const bool folds = !first_fold_.empty() || !inside_fold_.empty() || !between_fold_.empty();
  const int64_t half = pieces_.bytes() / 2, scratch = folds ? pieces_.bytes() : half;
  const int64_t dots = pieces_.pieces() * pieces_.tensors() * kDots;
  const int64_t aligned = AlignedForGpus(scratch);
  HORON_ASSIGN(block_,
               stage_.Block(pieces_.bytes() + aligned + dots + pieces_.tensors() * kWeight));
  scratch_ = block_ + pieces_.bytes();
  dots_ = reinterpret_cast<Dots*>(scratch_ + aligned);
  weights_ = reinterpret_cast<Coefficients*>(scratch_ + aligned + dots);
  held_ = {0, pieces_.pieces()};
  return Status::Ok();
}

// An average inside the node is that of what is packed.
Status GpuTree::Pack() {
  const int64_t element = SizeOf(stage_.dtype());
  std::vector<Piece> pieces;
  for (int64_t k = 0; k < pieces_.pieces(); ++k) {
    for (size_t i = 0; i < stage_.segments().size(); ++i) {
      const Segment& segment = stage_.segments()[i];
      if (pieces_.CountOf(i, k) == 0) continue;
      pieces.push_back({segment.input + pieces_.BeginOf(i, k) * element,
                        At({k, 1}).data + pieces_.PlaceOf(i), pieces_.CountOf(i, k)});
    }
  }
  double scale = stage_.prescale();
  if (local_op_ == LocalOp::kAverage) scale /= width_;
  return stage_.stream().Move(stage_.dtype(), stage_.dtype(), scale, pieces);
}

Status GpuTree::Unpack() {
  const int64_t element = SizeOf(stage_.dtype()), of_part = pieces_.pieces() / owners_;
  std::vector<Piece> pieces;
  for (int64_t k = 0; k < pieces_.pieces(); ++k) {
    const int64_t part = gathered_in_order_ ? k / of_part : Turned(k / of_part, inside_levels_);
    const std::byte* const from = At({part * of_part + k % of_part, 1}).data;
    for (size_t i = 0; i < stage_.segments().size(); ++i) {
      const Segment& segment = stage_.segments()[i];
      if (pieces_.CountOf(i, k) == 0) continue;
      pieces.push_back({from + pieces_.PlaceOf(i), segment.output + pieces_.BeginOf(i, k) * element,
                        pieces_.CountOf(i, k)});
    }
  }
  return stage_.stream().Move(stage_.dtype(), stage_.dtype(), stage_.postscale(), pieces);
}

// --- the way up ----------------------------------------------------------------------------------

Task GpuTree::Up() {
  for (const Step& step : first_fold_) {
    Task fold = Fold(step, Alone());
    HORON_CO_TRY(co_await fold);
  }
  if (local_op_ != LocalOp::kAdasum) {
    const int64_t part = pieces_.pieces() / owners_;
    held_ = {local_ * part, part};
    if (width_ > 1)
      HORON_CO_TRY(
          stage_.group().ReduceScatter(stage_.dtype(), ReduceKind::kSum, block_, At(held_).data,
                                       At(held_).bytes / SizeOf(stage_.dtype()), stage_.stream()));
  }
  for (const Step& step : inside_fold_) {
    Task fold = Fold(step, Alone());
    HORON_CO_TRY(co_await fold);
  }
  for (size_t level = 0; level < inside_.size(); ++level) {
    Task halve = Halve(inside_[level], Inside(static_cast<int>(level)));
    HORON_CO_TRY(co_await halve);
  }
  for (const Step& step : between_fold_) {
    Task fold = Fold(step, Between(0));
    HORON_CO_TRY(co_await fold);
  }
  for (size_t level = 0; level < between_.size(); ++level) {
    Task halve = Halve(between_[level], Between(static_cast<int>(level) + 1));
    HORON_CO_TRY(co_await halve);
  }
  co_return Status::Ok();
}

// All that is held goes to the first, which combines it with its own.
Task GpuTree::Fold(Step step, Holders holders) {
  const bool first = step.taken() && step.meeting.first, second = step.taken() && !first;
  const Span held = At(held_);
  Task trade =
      Trade(step.peer, second ? held : Span{}, first ? Span{scratch_, held.bytes} : Span{});
  HORON_CO_TRY(co_await trade);
  const int64_t rows = held_.count, mine = holders.me * rows;
  const auto all = static_cast<int64_t>(holders.near.size()) * rows;
  if (first) HORON_CO_TRY(Dot(step, mine));
  Task tell = Tell(std::move(holders), rows, first);
  HORON_CO_TRY(co_await tell);
  if (!first) co_return Status::Ok();
  const Weighing how{step.meeting.leaves_a, step.meeting.leaves_b, zeros_};
  HORON_CO_TRY(stage_.stream().Weigh(how, dots_, all, pieces_.tensors(), weights_));
  co_return Combine(step);
}

// The first keeps the lower half.
Task GpuTree::Halve(Step step, Holders holders) {
  const int64_t half = held_.count / 2;
  Stretch keep{held_.begin, half}, give{held_.begin + half, half};
  if (!step.meeting.first) std::swap(keep, give);
  Task trade = Trade(step.peer, At(give), Span{scratch_, At(keep).bytes});
  HORON_CO_TRY(co_await trade);
  const int64_t blocks = int64_t{1} << holders.across.size();
  const auto near = static_cast<int64_t>(holders.near.size());
  const int64_t mine = (holders.block * near + holders.me) * half, all = blocks * near * half;
  if (step.taken()) {
    held_ = keep;
    HORON_CO_TRY(Dot(step, mine));
  }
  Task tell = Tell(std::move(holders), half, step.taken());
  HORON_CO_TRY(co_await tell);
  if (!step.taken()) co_return Status::Ok();
  const Weighing how{step.meeting.leaves_a, step.meeting.leaves_b, zeros_};
  HORON_CO_TRY(stage_.stream().Weigh(how, dots_, all, pieces_.tensors(), weights_));
  co_return Combine(step);
}

// What is held, with what came from the peer.
std::vector<Pair> GpuTree::PairsOf(const Step& step) const {
  std::vector<Pair> pairs;
  for (int64_t k = 0; k < held_.count; ++k) {
    std::byte* const mine = At({held_.begin + k, 1}).data;
    const std::byte* const theirs = scratch_ + k * pieces_.piece_bytes();
    for (size_t i = 0; i < stage_.segments().size(); ++i) {
      const int64_t at = pieces_.PlaceOf(i);
      Pair pair{mine + at, theirs + at, mine + at, pieces_.CountOf(i, held_.begin + k)};
      if (!step.meeting.first) std::swap(pair.x, pair.y);
      pair.by = weights_ + i;
      pairs.push_back(pair);
    }
  }
  return pairs;
}

Status GpuTree::Dot(const Step& step, int64_t at) {
  return stage_.stream().Dot(stage_.dtype(), PairsOf(step), Row(at));
}

Status GpuTree::Combine(const Step& step) {
  return stage_.stream().Combine(stage_.dtype(), PairsOf(step));
}

// Everybody gets everybody's rows, in one order: first those of the near ranks, then twice as many
// from each peer.
Task GpuTree::Tell(Holders holders, int64_t rows, bool taken) {
  const int64_t row_bytes = pieces_.tensors() * kDots;
  const auto near = static_cast<int64_t>(holders.near.size());
  const auto span = [&](int64_t begin, int64_t count) {
    return Span{reinterpret_cast<std::byte*>(Row(begin * rows)), count * rows * row_bytes};
  };
  if (near > 1) {
    std::vector<Span> send(static_cast<size_t>(comm_.size())), recv(send.size());
    const int64_t first = holders.block * near;
    for (int64_t k = 0; k < near && taken; ++k) {
      if (k == holders.me) continue;
      const auto to = static_cast<size_t>(holders.near[static_cast<size_t>(k)]);
      send[to] = span(first + holders.me, 1);
      recv[to] = span(first + k, 1);
    }
    Task exchange = stage_.Exchange(std::move(send), std::move(recv));
    HORON_CO_TRY(co_await exchange);
  }
  int64_t known = near;
  for (size_t bit = 0; bit < holders.across.size(); ++bit, known *= 2) {
    const int64_t mine = holders.block >> bit;
    Task trade = Trade(taken ? holders.across[bit] : -1, span(mine * known, known),
                       span((mine ^ 1) * known, known));
    HORON_CO_TRY(co_await trade);
  }
  co_return Status::Ok();
}

// Without a peer: only the others' exchange.
Task GpuTree::Trade(int peer, Span give, Span take) {
  std::vector<Span> send(static_cast<size_t>(comm_.size())), recv(send.size());
  if (peer >= 0) {
    send[static_cast<size_t>(peer)] = give;
    recv[static_cast<size_t>(peer)] = take;
  }
  Task exchange = stage_.Exchange(std::move(send), std::move(recv));
  co_return co_await exchange;
}

// --- the way down --------------------------------------------------------------------------------

Task GpuTree::Down() {
  for (size_t level = between_.size(); level-- > 0;) {
    Task rejoin = Rejoin(between_[level]);
    HORON_CO_TRY(co_await rejoin);
  }
  for (const Step& step : between_fold_) {
    Task unfold = Unfold(step);
    HORON_CO_TRY(co_await unfold);
  }
  Task gather = GatherInside();
  HORON_CO_TRY(co_await gather);
  held_ = {0, pieces_.pieces()};
  for (const Step& step : first_fold_) {
    Task unfold = Unfold(step);
    HORON_CO_TRY(co_await unfold);
  }
  co_return Status::Ok();
}

// What a halving has parted.
Task GpuTree::Rejoin(Step step) {
  const int64_t other = step.meeting.first ? held_.begin + held_.count : held_.begin - held_.count;
  const Stretch theirs{other, held_.count};
  Task trade = Trade(step.peer, At(held_), At(theirs));
  HORON_CO_TRY(co_await trade);
  if (step.taken()) held_ = {std::min(held_.begin, other), 2 * held_.count};
  co_return Status::Ok();
}

// What was folded gets the result.
Task GpuTree::Unfold(Step step) {
  const bool first = step.taken() && step.meeting.first, second = step.taken() && !first;
  Task trade = Trade(step.peer, first ? At(held_) : Span{}, second ? At(held_) : Span{});
  co_return co_await trade;
}

// Every rank gets every owner's part. Where all are owners, parts may lie by owner.
Task GpuTree::GatherInside() {
  if (width_ == 1) co_return Status::Ok();
  const int64_t of_part = pieces_.pieces() / owners_;
  const auto part_of = [&](int64_t owner) {
    return Stretch{Turned(owner, inside_levels_) * of_part, of_part};
  };
  if (owners_ == width_) {
    gathered_in_order_ = local_op_ != LocalOp::kAdasum;
    const Span mine = At({local_ * of_part, of_part});
    if (!gathered_in_order_)
      HORON_CO_TRY(stage_.stream().Copy(mine.data, At(part_of(local_)).data, mine.bytes));
    co_return stage_.group().Allgather(mine.data, block_, mine.bytes, stage_.stream());
  }
  const std::vector<int>& node = nodes_[static_cast<size_t>(node_)];
  std::vector<Span> send(static_cast<size_t>(comm_.size())), recv(send.size());
  for (int k = 0; k < width_; ++k) {
    const auto peer = static_cast<size_t>(node[static_cast<size_t>(k)]);
    if (k == local_) continue;
    if (local_ < owners_) send[peer] = At(part_of(local_));
    if (k < owners_) recv[peer] = At(part_of(k));
  }
  Task exchange = stage_.Exchange(std::move(send), std::move(recv));
  co_return co_await exchange;
}

}  // namespace horon::adasum
