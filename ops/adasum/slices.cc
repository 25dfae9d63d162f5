// The elementwise part of hierarchical Adasum: sums inside a node, in slices, and their gathering.
#include <algorithm>
#include <utility>

#include "ops/adasum/share.h"
#include "runtime/base/fault.h"

namespace horon::adasum {

Ranges Share::Slice(int owners, int k) const {
  Ranges slice;
  for (const Segment& s : stage_->segments()) {
    const int64_t begin = PartBegin(s.count, owners, k);
    slice.push_back({begin, PartBegin(s.count, owners, k + 1) - begin});
  }
  return slice;
}

// In chunks, so that what has come of the others' values is at most half of the bucket.
Task Share::ReduceSlices(std::span<const int> members, int owners, double scale) {
  const int me = IndexOf(members, rank());
  const auto others = static_cast<int64_t>(members.size()) - 1;
  int64_t largest = 0;
  for (int k = 0; k < owners; ++k) largest = std::max(largest, Total(Slice(owners, k)));
  const int64_t most = std::max<int64_t>(1, Total(own_) / 2 / std::max<int64_t>(1, others));
  const int64_t chunk = std::min({chunk_, most, largest});
  if (me < owners) HORON_CO_TRY(Reserve(others * chunk));
  for (int64_t from = 0; from < largest; from += chunk) {
    HORON_CO_TRY(co_await ReduceChunk(members, owners, scale, {from, chunk}));
  }
  own_ = me < owners ? Slice(owners, me) : Ranges{};
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = segment(i).output;
  co_return Status::Ok();
}

// These elements of every slice's row: mine come from all members, theirs go out.
Task Share::ReduceChunk(std::span<const int> members, int owners, double scale, Range chunk) {
  const auto size = static_cast<int>(members.size());
  const int me = IndexOf(members, rank());
  const auto chunk_of = [&](const Ranges& slice) {
    const int64_t from = std::min(chunk.begin, Total(slice));
    return Range{from, std::min(chunk.count, Total(slice) - from)};
  };
  const Ranges mine = me < owners ? Slice(owners, me) : Ranges{};
  const Range own = chunk_of(mine);
  const auto come = [&](int p) { return Scratch((p < me ? p : p - 1) * own.count); };
  RecycledVector<Transfer> receives(members.size()), sends(members.size());
  for (int hop = 1; hop < size; ++hop) {
    const int p = (me + hop) % size;
    const auto at = static_cast<size_t>(p);
    if (own.count > 0) {
      const Span place{come(p), own.count * element_};
      HORON_CO_TRY(comm().Receive(receives[at], members[at], place));
    }
    if (p >= owners) continue;
    const Ranges theirs = Slice(owners, p);
    const Range part = chunk_of(theirs);
    if (part.count == 0) continue;
    const auto spans = FromValues(theirs).spans(part.begin, part.begin + part.count);
    HORON_CO_TRY(comm().Send(sends[at], members[at], spans));
  }
  for (Transfer& receive : receives) HORON_CO_TRY(co_await Finished(receive));
  const auto reduce = [&](size_t i, int64_t begin, int64_t n, int64_t at) {
    RecycledVector<const std::byte*> inputs;
    for (int p = 0; p < size; ++p) {
      inputs.push_back(p == me ? Value(i, begin) : come(p) + (at - own.begin) * element_);
    }
    ReduceInto(ReduceKind::kSum, dtype_, scale, inputs, Output(i, begin), n);
  };
  FaultPoint(FaultPhase::kReduce);
  ForPieces(mine, own.begin, own.begin + own.count, reduce);
  for (Transfer& send : sends) HORON_CO_TRY(co_await Finished(send));
  co_return Status::Ok();
}

Task Share::GatherSlices(std::span<const int> members, int owners) {
  const auto size = static_cast<int>(members.size());
  const int me = IndexOf(members, rank());
  RecycledVector<Transfer> receives(members.size()), sends(members.size());
  const auto all = [this](const Ranges& slice) {
    return FromOutputs(slice).spans(0, Total(slice));
  };
  for (int hop = 1; hop < size; ++hop) {
    const auto to = static_cast<size_t>((me + hop) % size);
    const int from = (me - hop + size) % size;
    const Ranges theirs = from < owners ? Slice(owners, from) : Ranges{};
    if (Total(theirs) > 0) {
      const auto at = static_cast<size_t>(from);
      HORON_CO_TRY(comm().Receive(receives[at], members[at], all(theirs)));
    }
    if (Total(own_) > 0) HORON_CO_TRY(comm().Send(sends[to], members[to], all(own_)));
  }
  for (Transfer& receive : receives) HORON_CO_TRY(co_await Finished(receive));
  for (Transfer& send : sends) HORON_CO_TRY(co_await Finished(send));
  co_return Status::Ok();
}

}  // namespace horon::adasum
