// The collectives that only move bytes. Those that reduce are in collectives_reduce.cc.
#include "runtime/transport/collectives.h"

#include <algorithm>
#include <cstring>

#include "runtime/device/kernels.h"
#include "runtime/transport/spans.h"

namespace horon {
namespace {

constexpr int64_t kBroadcastChunk = 512 << 10;
constexpr int64_t kBroadcastWindow = 4;  // chunks in flight per edge of the tree

// This rank's place in a binomial tree: numbered from the root, a rank's parent lacks its lowest
// set bit, and its children have one more bit below that one, the largest subtree first.
struct Place {
  int parent = -1;  // -1 at the root
  RecycledVector<int> children;

  Place(int rank, int size, int root) {
    const int from_root = (rank - root + size) % size;
    int bit = 1;
    while (bit < size && (from_root & bit) == 0) bit <<= 1;
    if (from_root != 0) parent = (from_root - bit + root) % size;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (from_root + bit < size) children.push_back((from_root + bit + root) % size);
    }
  }
};

}  // namespace

int64_t PartBegin(int64_t count, int parts, int i) {
  return count / parts * i + std::min<int64_t>(i, count % parts);
}

RecycledVector<Part> NearlyEqualParts(int64_t count, int parts, int size) {
  RecycledVector<Part> all;
  for (int i = 0; i < size; ++i) {
    const int64_t begin = PartBegin(count, parts, std::min(i, parts));
    all.push_back({begin, PartBegin(count, parts, std::min(i + 1, parts)) - begin});
  }
  return all;
}

RecycledVector<Part> InBytes(std::span<const Part> parts, DataType dtype) {
  RecycledVector<Part> bytes;
  for (const Part& part : parts) {
    bytes.push_back({part.begin * SizeOf(dtype), part.count * SizeOf(dtype)});
  }
  return bytes;
}

Task Allgather(Communicator& comm, std::byte* block, std::span<const Part> parts_bytes) {
  const auto span_of = [&](int p) {
    const Part& part = parts_bytes[static_cast<size_t>(p)];
    return Span{block + part.begin, part.count};
  };
  RecycledVector<Transfer> transfers(2 * static_cast<size_t>(comm.size()));
  const Span own = span_of(comm.rank());
  // Everyone starts with its right neighbour, so that no rank is everyone's first target.
  for (int step = 1; step < comm.size(); ++step) {
    const int to = (comm.rank() + step) % comm.size();
    const int from = (comm.rank() - step + comm.size()) % comm.size();
    const Span theirs = span_of(from);
    auto* pair = &transfers[2 * static_cast<size_t>(step)];
    if (theirs.bytes > 0) HORON_CO_TRY(comm.Receive(pair[0], from, theirs));
    if (own.bytes > 0) HORON_CO_TRY(comm.Send(pair[1], to, own));
  }
  for (Transfer& transfer : transfers) HORON_CO_TRY(co_await Finished(transfer));
  co_return Status::Ok();
}

Task Alltoall(Communicator& comm, std::span<const Span> send, std::span<const Span> recv) {
  const auto me = static_cast<size_t>(comm.rank());
  RecycledVector<Transfer> transfers(2 * static_cast<size_t>(comm.size()));
  for (int step = 1; step < comm.size(); ++step) {
    const int to = (comm.rank() + step) % comm.size();
    const int from = (comm.rank() - step + comm.size()) % comm.size();
    const Span& out = send[static_cast<size_t>(to)];
    const Span& in = recv[static_cast<size_t>(from)];
    auto* pair = &transfers[2 * static_cast<size_t>(step)];
    if (in.bytes > 0) HORON_CO_TRY(comm.Receive(pair[0], from, in));
    if (out.bytes > 0) HORON_CO_TRY(comm.Send(pair[1], to, out));
  }
  if (send[me].data != recv[me].data) CopyInto(send[me].data, recv[me].data, send[me].bytes);
  for (Transfer& transfer : transfers) HORON_CO_TRY(co_await Finished(transfer));
  co_return Status::Ok();
}

Task Barrier(Communicator& comm) {
  for (int distance = 1; distance < comm.size(); distance *= 2) {
    const int to = (comm.rank() + distance) % comm.size();
    const int from = (comm.rank() - distance + comm.size()) % comm.size();
    Transfer in, out;
    HORON_CO_TRY(comm.Receive(in, from, std::span<const Span>{}));
    HORON_CO_TRY(comm.Send(out, to, std::span<const Span>{}));
    HORON_CO_TRY(co_await Finished(in));
    HORON_CO_TRY(co_await Finished(out));
  }
  co_return Status::Ok();
}

Task Broadcast(Communicator& comm, std::span<const Span> spans, int root,
               std::span<const Span> copies) {
  const Place place(comm.rank(), comm.size(), root);
  const int64_t chunks = (TotalBytes(spans) + kBroadcastChunk - 1) / kBroadcastChunk;
  const size_t window = static_cast<size_t>(std::min(chunks, kBroadcastWindow));
  const size_t children = place.children.size();
  SpanCursor at, copy_at;  // where the next chunk begins
  RecycledVector<RecycledVector<Span>> slices(window);
  RecycledVector<Transfer> receives(window), sends(window * children);
  int64_t opened = 0;  // chunks whose receive is posted
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (; opened < std::min(chunks, chunk + kBroadcastWindow); ++opened) {
      const size_t slot = static_cast<size_t>(opened) % window;
      slices[slot].clear();
      ForNext(spans, at, kBroadcastChunk,
              [&](std::byte* data, int64_t n) { slices[slot].push_back({data, n}); });
      if (place.parent < 0) continue;
      HORON_CO_TRY(comm.Receive(receives[slot], place.parent, slices[slot]));
    }
    const size_t slot = static_cast<size_t>(chunk) % window;
    HORON_CO_TRY(co_await Finished(receives[slot]));
    for (size_t child = 0; child < children; ++child) {
      Transfer& send = sends[slot * children + child];
      HORON_CO_TRY(co_await Finished(send));  // the chunk that had this slot before
      HORON_CO_TRY(comm.Send(send, place.children[child], slices[slot]));
    }
    for (const Span& piece : slices[slot]) {
      const std::byte* from = piece.data;
      ForNext(copies, copy_at, piece.bytes, [&](std::byte* to, int64_t n) {
        if (to != from) std::memcpy(to, from, static_cast<size_t>(n));
        from += n;
      });
    }
  }
  for (Transfer& send : sends) HORON_CO_TRY(co_await Finished(send));
  co_return Status::Ok();
}

}  // namespace horon
