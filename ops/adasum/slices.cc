// The elementwise part of hierarchical Adasum: sums inside a node, in slices, and their gathering.
#include <algorithm>
#include <utility>

#include "ops/adasum/share.h"

namespace horon::adasum {

Ranges Share::Slice(int owners, int k) const {
  Ranges slice;
  for (const Segment& s : stage_->segments()) {
    const int64_t begin = PartBegin(s.count, owners, k);
    slice.push_back({begin, PartBegin(s.count, owners, k + 1) - begin});
  }
  return slice;
}

Task Share::ReduceSlices(std::span<const int> members, int owners, double scale) {
  int64_t largest = 0;
  for (int k = 0; k < owners; ++k) largest = std::max(largest, Total(Slice(owners, k)));
  HORON_CO_TRY(Reserve(static_cast<int64_t>(members.size()) * std::min(chunk_, largest)));
  for (int64_t k = 0; k * chunk_ < largest; ++k) {
    HORON_CO_TRY(co_await ReduceChunk(members, owners, scale, k));
  }
  const auto me = std::find(members.begin(), members.end(), comm().rank()) - members.begin();
  own_ = me < owners ? Slice(owners, static_cast<int>(me)) : Ranges{};
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = segment(i).output;
  co_return Status::Ok();
}

// Chunk k of every slice: mine comes from all members, theirs go out.
Task Share::ReduceChunk(std::span<const int> members, int owners, double scale, int64_t k) {
  const auto size = static_cast<int>(members.size());
  const auto me =
      static_cast<int>(std::find(members.begin(), members.end(), comm().rank()) - members.begin());
  const auto chunk_of = [&](const Ranges& slice) {
    const int64_t from = std::min(k * chunk_, Total(slice));
    return Range{from, std::min(chunk_, Total(slice) - from)};
  };
  const Ranges mine = me < owners ? Slice(owners, me) : Ranges{};
  const Range own = chunk_of(mine);
  RecycledVector<Transfer> receives(members.size()), sends(members.size());
  for (int hop = 1; hop < size; ++hop) {
    const int p = (me + hop) % size;
    const auto at = static_cast<size_t>(p);
    if (own.count > 0) {
      const Span place{Scratch(p * own.count), own.count * element_};
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
      inputs.push_back(p == me ? Value(i, begin) : Scratch(p * own.count + at - own.begin));
    }
    ReduceInto(ReduceKind::kSum, dtype_, scale, inputs, Output(i, begin), n);
  };
  ForPieces(mine, own.begin, own.begin + own.count, reduce);
  for (Transfer& send : sends) HORON_CO_TRY(co_await Finished(send));
  co_return Status::Ok();
}

Task Share::GatherSlices(std::span<const int> members, int owners) {
  const auto size = static_cast<int>(members.size());
  const auto me =
      static_cast<int>(std::find(members.begin(), members.end(), comm().rank()) - members.begin());
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
