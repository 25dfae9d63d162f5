// Adasum along rings. A chunk of each tensor starts at one rank and travels to the next, which
// combines it with its own values, until all have; then the finished chunks go round once more.
// Sent: 2 S (n-1)/n, and between neighbours only.
//
// The coefficients belong to chunks, not tensors, and each chunk has a chain of its own in place of
// the tree: an approximation. Parallel gradients are averaged and orthogonal ones added all the
// same.
#include <algorithm>

#include "ops/adasum/share.h"
#include "runtime/base/fault.h"

namespace horon::adasum {

// One step on one ring: a chunk to the right neighbour, another one from the left.
struct Share::Hop {
  int to, from;
  Ranges out, in;
  Transfer send, receive;
};

namespace {

int Around(std::span<const int> ring, int position) {
  const auto size = static_cast<int>(ring.size());
  return (position % size + size) % size;
}

}  // namespace

// What `mine` holds becomes Ada(what came, mine).
void Share::CombineRound(const Ranges& chunk, int64_t at, double leaves) {
  for (size_t i = 0; i < chunk.size(); ++i) {
    const auto [begin, count] = chunk[i];
    if (count == 0) continue;
    WideDots dots;
    AddDots(dtype_, Scratch(at), Value(i, begin), count, &dots);
    const Weights weights = WeightsOf(dots, leaves, 1, zeros_);
    adasum::Combine(dtype_, weights, Scratch(at), Value(i, begin), Output(i, begin), count);
    at += count;
  }
}

void Share::ScaleRound(const Ranges& chunk) {
  const double scale = stage_->postscale();
  for (size_t i = 0; i < chunk.size() && scale != 1.0; ++i) {
    std::byte* const at = Output(i, chunk[i].begin);
    ScaleInto(dtype_, scale, at, at, chunk[i].count);
  }
}

Task Share::GoRound(std::span<const RecycledVector<int>> rings) {
  if (comm().size() == 1) {
    End();
    co_return Status::Ok();
  }
  const int size = comm().size(), chunks = size * static_cast<int>(rings.size());
  const auto chunk = [&](size_t r, int position) {
    return Slice(chunks, static_cast<int>(r) * size + Around(rings[r], position));
  };
  int64_t largest = 0;
  for (int k = 0; k < chunks; ++k) largest = std::max(largest, Total(Slice(chunks, k)));
  HORON_CO_TRY(Reserve(largest * static_cast<int64_t>(rings.size())));

  // Hops 1 .. n-1 combine, and at the end each rank has finished the chunk of its own position;
  // hops n .. 2n-2 hand the finished ones on.
  for (int hop = 1; hop < 2 * size - 1; ++hop) {
    const bool combining = hop < size;
    RecycledVector<Hop> hops(rings.size());
    for (size_t r = 0; r < rings.size(); ++r) {
      const std::span<const int> ring = rings[r];
      const int me = IndexOf(ring, rank());
      Hop& h = hops[r];
      h.to = ring[static_cast<size_t>(Around(ring, me + 1))];
      h.from = ring[static_cast<size_t>(Around(ring, me - 1))];
      h.out = chunk(r, me - hop);
      h.in = chunk(r, me - hop - 1);
      const Flow in = combining ? IntoScratch(h.in) : FromOutputs(h.in);
      const Flow out = hop == 1 ? FromValues(h.out) : FromOutputs(h.out);
      auto places = in.spans(0, in.count);
      if (combining)
        for (Span& place : places) place.data += static_cast<int64_t>(r) * largest * element_;
      if (in.count > 0) HORON_CO_TRY(comm().Receive(h.receive, h.from, std::move(places)));
      if (out.count > 0) HORON_CO_TRY(comm().Send(h.send, h.to, out.spans(0, out.count)));
    }
    for (size_t r = 0; r < rings.size(); ++r) {
      Hop& h = hops[r];
      if (Total(h.in) > 0) HORON_CO_TRY(co_await Finished(h.receive));
      FaultPoint(combining ? FaultPhase::kReduce : FaultPhase::kCopyOut);
      if (combining) CombineRound(h.in, static_cast<int64_t>(r) * largest, hop);
      if (hop == size - 1) ScaleRound(h.in);
    }
    for (Hop& h : hops)
      if (Total(h.out) > 0) HORON_CO_TRY(co_await Finished(h.send));
  }
  co_return Status::Ok();
}

}  // namespace horon::adasum
