// One exchange of two rows of elements with a peer, in chunks: while one chunk is worked on, the
// next ones travel.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/transport/communicator.h"

namespace horon::adasum {

// One direction. Both functions get a chunk as the row's elements [from, to).
struct Flow {
  int64_t count = 0;  // elements; 0: no message at all
  // Adds to the places where the chunk lies.
  std::function<void(int64_t from, int64_t to, RecycledVector<Span>* places)> lay;
  // Outgoing: called before the chunk is sent. Incoming: after it has arrived, in ascending order.
  std::function<void(int64_t from, int64_t to)> work = [](int64_t, int64_t) {};

  RecycledVector<Span> spans(int64_t from, int64_t to) const {
    RecycledVector<Span> places;
    lay(from, to, &places);
    return places;
  }
};

// Sends `out` to and receives `in` from `peer`, chunks of `chunk` elements each, four in flight.
// The peer's flows have the same counts, and it gives the same chunk. Done when both are through.
Task Exchange(Communicator& comm, int peer, int64_t chunk, Flow out, Flow in);

}  // namespace horon::adasum
