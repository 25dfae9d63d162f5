#include "ops/gossip/mix.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace horon::gossip {
namespace {

constexpr int64_t kSliceBytes = 1 << 20;

struct SlicePiece {
  size_t part;
  int64_t begin, count;  // elements
};
using Slice = std::vector<SlicePiece>;

std::vector<Slice> Cut(const std::vector<Part>& parts, int64_t element) {
  std::vector<Slice> slices;
  int64_t room = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (int64_t at = 0; at < parts[i].count;) {
      if (room < element) slices.emplace_back(), room = kSliceBytes;
      const int64_t count = std::min(parts[i].count - at, room / element);
      slices.back().push_back({i, at, count});
      at += count;
      room -= count * element;
    }
  }
  return slices;
}

// One slice between Begin and Mix.
class InFlight {
 public:
  // Posts all of the slice's messages.
  Status Begin(Communicator& comm, const std::vector<Part>& parts, const Mixing& mixing,
               Slice slice) {
    slice_ = std::move(slice);
    std::map<int, int64_t> incoming;  // bytes by sender
    std::map<int, std::vector<Span>> outgoing;
    factors_.clear();
    Plan(parts, mixing, incoming, outgoing);
    int64_t total = 0;
    for (const auto& [rank, bytes] : incoming) total += bytes;
    HORON_ASSIGN(room_, comm.pool().Take(total));
    transfers_ = std::vector<Transfer>(incoming.size() + outgoing.size());
    size_t next = 0;
    std::byte* at = room_.data();
    for (const auto& [rank, bytes] : incoming) {
      arrived_[rank] = at;
      HORON_TRY(comm.Receive(transfers_[next++], rank, Span{at, bytes}));
      at += bytes;
    }
    for (const auto& [rank, spans] : outgoing)
      HORON_TRY(comm.Send(transfers_[next++], rank, spans));
    return Status::Ok();
  }

  std::vector<Transfer>& transfers() { return transfers_; }

  void Mix(const std::vector<Part>& parts, const Mixing& mixing) {
    const int64_t element = SizeOf(mixing.dtype);
    std::vector<Heard> others;
    for (const SlicePiece& piece : slice_) {
      const Part& part = parts[piece.part];
      others.clear();
      for (const Neighbor& from : part.row.from) {
        std::byte*& at = arrived_[from.rank];
        double theirs = 1;
        if (mixing.weights_travel) {
          std::memcpy(&theirs, at, sizeof theirs);
          at += sizeof theirs;
        }
        others.push_back({at, from.weight * theirs});
        at += piece.count * element;
      }
      MixHeard(mixing.dtype, mixing.factor, part.row.self, part.input + piece.begin * element,
               others, part.output + piece.begin * element, piece.count);
    }
  }

 private:
  void Plan(const std::vector<Part>& parts, const Mixing& mixing, std::map<int, int64_t>& incoming,
            std::map<int, std::vector<Span>>& outgoing) {
    const int64_t element = SizeOf(mixing.dtype);
    size_t sent = 0;
    for (const SlicePiece& piece : slice_) sent += parts[piece.part].row.to.size();
    factors_.reserve(sent);  // spans point into it
    for (const SlicePiece& piece : slice_) {
      const Part& part = parts[piece.part];
      // Sends only read.
      const Span data{const_cast<std::byte*>(part.input) + piece.begin * element,
                      piece.count * element};
      const int64_t header = mixing.weights_travel ? static_cast<int64_t>(sizeof(double)) : 0;
      for (const Neighbor& from : part.row.from) incoming[from.rank] += header + data.bytes;
      for (const Neighbor& to : part.row.to) {
        factors_.push_back(to.weight);
        if (header > 0)
          outgoing[to.rank].push_back({reinterpret_cast<std::byte*>(&factors_.back()), header});
        outgoing[to.rank].push_back(data);
      }
    }
  }

  Slice slice_;
  std::vector<double> factors_;
  Buffer room_;
  std::map<int, std::byte*> arrived_;  // where the next piece from each sender lies
  std::vector<Transfer> transfers_;    // last: they use the others
};

}  // namespace

void CountSent(Stage& stage, const Communicator& comm, std::span<const Part> parts,
               DataType dtype) {
  for (const Part& part : parts) {
    for (const Neighbor& to : part.row.to)
      stage.CountSent(comm.global(to.rank), part.count * SizeOf(dtype));
  }
}

Task MixParts(Communicator& comm, std::vector<Part> parts, Mixing mixing) {
  const std::vector<Slice> slices = Cut(parts, SizeOf(mixing.dtype));
  InFlight flights[2];
  for (size_t next = 0; next <= slices.size(); ++next) {
    if (next < slices.size())
      HORON_CO_TRY(flights[next % 2].Begin(comm, parts, mixing, slices[next]));
    if (next == 0) continue;
    InFlight& flight = flights[(next - 1) % 2];
    for (Transfer& transfer : flight.transfers()) HORON_CO_TRY(co_await Finished(transfer));
    flight.Mix(parts, mixing);
  }
  co_return Status::Ok();
}

Task MixPart(Stage& stage, Communicator& across, std::vector<Row> rows, std::byte* part,
             int64_t count) {
  const Mixing mixing{stage.dtype()};
  for (Row& row : rows) {
    std::vector<Part> parts = {{std::move(row), part, part, count}};
    CountSent(stage, across, parts, mixing.dtype);
    HORON_CO_TRY(co_await MixParts(across, std::move(parts), mixing));
  }
  co_return Status::Ok();
}

}  // namespace horon::gossip
