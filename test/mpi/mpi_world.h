// What the MPI tests share: the plugin, opened as the library does, and a way to wait with a limit.
//
// Every rank runs every test, in the same order. mpi_main.cc opens the world before the first.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/recycler.h"
#include "runtime/transport/mpi.h"

namespace horon::test {

MpiWorld& World();
std::unique_ptr<MpiWorld> OpenAnotherWorld();

// Progresses until `done`, at most 30 s. False: the time is over, or progress failed.
inline bool Drive(Transport& transport, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  while (!done()) {
    if (!transport.Progress().ok() || std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

// All ranks have come here.
inline bool Meet() { return World().Exchange("", {std::chrono::seconds{30}}).ok(); }

inline int Next() { return (World().rank() + 1) % World().size(); }
inline int Previous() { return (World().rank() + World().size() - 1) % World().size(); }

inline Span Whole(std::vector<std::byte>& bytes) {
  return {bytes.data(), static_cast<int64_t>(bytes.size())};
}

// One rank's transport, made anew for each test.
struct Wire {
  Counters counters;
  std::unique_ptr<Transport> transport;
  explicit Wire(int64_t piece = kMpiPiece)
      : transport(World().MakeTransport(counters, false, piece)) {}
  Transport& operator*() { return *transport; }
};

// Cuts `bytes` into `pieces` spans, with an empty one in between.
inline RecycledVector<Span> Cut(std::vector<std::byte>& bytes, int64_t pieces) {
  RecycledVector<Span> spans;
  const auto total = static_cast<int64_t>(bytes.size());
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = total * i / pieces, end = total * (i + 1) / pieces;
    spans.push_back({bytes.data() + begin, end - begin});
    if (i == pieces / 2) spans.push_back({nullptr, 0});
  }
  return spans;
}

// Bytes that tell who sent which message.
inline std::vector<std::byte> Pattern(int64_t bytes, int rank, int message = 0) {
  std::vector<std::byte> pattern(static_cast<size_t>(bytes));
  uint32_t state = 2654435761u * static_cast<uint32_t>(rank * 1000 + message + 1);
  for (std::byte& b : pattern) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::byte>(state >> 24);
  }
  return pattern;
}

inline Status Start(Transport& transport, Transfer& transfer, Transfer::Direction direction,
                    int peer, Tag tag, RecycledVector<Span> spans) {
  transfer.direction = direction;
  transfer.peer = peer;
  transfer.tag = tag;
  transfer.spans = std::move(spans);
  return transport.Post(transfer);
}
inline Status Send(Transport& transport, Transfer& transfer, int to, Tag tag,
                   RecycledVector<Span> spans) {
  return Start(transport, transfer, Transfer::Direction::kSend, to, tag, std::move(spans));
}
inline Status Receive(Transport& transport, Transfer& transfer, int from, Tag tag,
                      RecycledVector<Span> spans) {
  return Start(transport, transfer, Transfer::Direction::kReceive, from, tag, std::move(spans));
}

}  // namespace horon::test
