// What a fake stream does: the host's arithmetic, on memory that only streams can reach.
#include <cstring>

#include "test/support/fake_gpu.h"

namespace horon::test {

namespace {

Span Reading(const std::byte* data, int64_t bytes) { return {const_cast<std::byte*>(data), bytes}; }

// Inputs of one length: what is read, and where the host finds it.
struct Inputs {
  Inputs(const FakeGpu& gpu, std::span<const std::byte* const> inputs, int64_t bytes) {
    for (const std::byte* input : inputs) {
      reads.push_back(Reading(input, bytes));
      inside.push_back(gpu.Inside(input));
    }
  }
  std::vector<Span> reads;
  std::vector<const std::byte*> inside;
};

}  // namespace

Status FakeStream::Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  return Start("a copy", {Reading(from, bytes)}, {{to, bytes}}, [=, this] {
    if (bytes > 0) std::memmove(gpu_.Inside(to), gpu_.Inside(from), static_cast<size_t>(bytes));
  });
}

Status FakeStream::Zero(std::byte* to, int64_t bytes) {
  return Start("a clearing", {}, {{to, bytes}}, [=, this] {
    if (bytes > 0) std::memset(gpu_.Inside(to), 0, static_cast<size_t>(bytes));
  });
}

Status FakeStream::Move(DataType from, DataType to, double scale, std::span<const Piece> pieces) {
  std::vector<Span> reads, writes;
  std::vector<Piece> inside;
  for (const Piece& piece : pieces) {
    reads.push_back(Reading(piece.from, piece.count * SizeOf(from)));
    writes.push_back({piece.to, piece.count * SizeOf(to)});
    inside.push_back({gpu_.Inside(piece.from), gpu_.Inside(piece.to), piece.count});
  }
  return Start("a move", reads, writes, [=] { MoveAll(from, to, scale, inside); });
}

Status FakeStream::Reduce(ReduceKind kind, DataType dtype, double scale,
                          std::span<const std::byte* const> inputs, std::byte* out, int64_t count) {
  const int64_t bytes = count * SizeOf(dtype);
  const Inputs given(gpu_, inputs, bytes);
  return Start("a reduction", given.reads, {{out, bytes}}, [=, this] {
    ReduceInto(kind, dtype, scale, given.inside, gpu_.Inside(out), count);
  });
}

Status FakeStream::Dot(DataType dtype, std::span<const Pair> pairs, Dots* sums) {
  std::vector<Span> reads;
  std::vector<Pair> inside(pairs.begin(), pairs.end());
  for (Pair& pair : inside) {
    reads.push_back(Reading(pair.x, pair.count * SizeOf(dtype)));
    reads.push_back(Reading(pair.y, pair.count * SizeOf(dtype)));
    pair.x = gpu_.Inside(pair.x);
    pair.y = gpu_.Inside(pair.y);
  }
  auto* const to = reinterpret_cast<std::byte*>(sums);
  return Start("dots", reads, {{to, static_cast<int64_t>(pairs.size() * sizeof(Dots))}},
               [=, this] { DotAll(dtype, inside, reinterpret_cast<Dots*>(gpu_.Inside(to))); });
}

Status FakeStream::Weigh(const Weighing& how, const Dots* parts, int64_t rows, int64_t tensors,
                         Coefficients* out) {
  const auto* const from = reinterpret_cast<const std::byte*>(parts);
  auto* const to = reinterpret_cast<std::byte*>(out);
  return Start("a weighing", {Reading(from, rows * tensors * static_cast<int64_t>(sizeof(Dots)))},
               {{to, tensors * static_cast<int64_t>(sizeof(Coefficients))}}, [=, this] {
                 WeighAll(how, reinterpret_cast<const Dots*>(gpu_.Inside(from)), rows, tensors,
                          reinterpret_cast<Coefficients*>(gpu_.Inside(to)));
               });
}

Status FakeStream::Combine(DataType dtype, std::span<const Pair> pairs) {
  std::vector<Span> reads, writes;
  std::vector<Pair> inside(pairs.begin(), pairs.end());
  for (Pair& pair : inside) {
    const int64_t bytes = pair.count * SizeOf(dtype);
    reads.push_back(Reading(pair.x, bytes));
    reads.push_back(Reading(pair.y, bytes));
    writes.push_back({pair.out, bytes});
    if (pair.by != nullptr) {
      const auto* const by = reinterpret_cast<const std::byte*>(pair.by);
      reads.push_back(Reading(by, static_cast<int64_t>(sizeof(Coefficients))));
      pair.by = reinterpret_cast<const Coefficients*>(gpu_.Inside(by));
    }
    pair.x = gpu_.Inside(pair.x);
    pair.y = gpu_.Inside(pair.y);
    pair.out = gpu_.Inside(pair.out);
  }
  return Start("a combination", reads, writes, [=] { CombineAll(dtype, inside); });
}

Status FakeStream::Mix(DataType dtype, std::span<const double> weights,
                       std::span<const std::byte* const> inputs, std::byte* out, int64_t count) {
  const int64_t bytes = count * SizeOf(dtype);
  const Inputs given(gpu_, inputs, bytes);
  const std::vector<double> own(weights.begin(), weights.end());
  return Start("a mixture", given.reads, {{out, bytes}},
               [=, this] { MixInto(dtype, own, given.inside, gpu_.Inside(out), count); });
}

}  // namespace horon::test
