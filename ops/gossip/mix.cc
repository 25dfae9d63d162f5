#include "ops/gossip/mix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

namespace horon::gossip {
namespace {

constexpr int64_t kSliceBytes = 1 << 20;
constexpr int64_t kBlock = 2048;  // elements: some blocks of them stay in the level-1 cache

// The sum of all weights is 1, as far as rounded weights can say so.
bool SumsToOne(double self, std::span<const Other> others) {
  for (const Other& other : others) self += other.weight;
  return std::fabs(self - 1) < 1e-12;
}

// `n` elements at `at`, as numbers of the type that they are added in.
const std::byte* Widened(DataType dtype, const std::byte* at, float* room, int64_t n) {
  if (SizeOf(dtype) > 2) return at;
  ToFloat(dtype, at, room, n);
  return reinterpret_cast<const std::byte*>(room);
}

// In difference form nothing is lost where all are equal: sum = own + w (other - own) + ...
void Add(DataType wide, bool differences, const std::byte* own, const std::byte* other,
         double weight, std::byte* sum, std::byte* room, int64_t n) {
  if (differences) {
    CombineInto(wide, 1, other, -1, own, room, n);
    other = room;
  }
  CombineInto(wide, 1, sum, weight, other, sum, n);
}

void MixBlock(DataType dtype, double factor, double self, const std::byte* own,
              std::span<const Other> others, int64_t begin, bool differences, std::byte* out,
              int64_t n) {
  alignas(64) double sum_room[kBlock], difference_room[kBlock];
  alignas(64) float own_room[kBlock], other_room[kBlock];
  const DataType wide = dtype == DataType::kFloat64 ? dtype : DataType::kFloat32;
  const int64_t at = begin * SizeOf(dtype);
  auto* const sum = reinterpret_cast<std::byte*>(sum_room);
  auto* const room = reinterpret_cast<std::byte*>(difference_room);
  const std::byte* const mine = Widened(dtype, own + at, own_room, n);
  ScaleInto(wide, differences ? 1.0 : self, mine, sum, n);
  for (const Other& other : others) {
    const std::byte* theirs = Widened(dtype, other.data + at, other_room, n);
    Add(wide, differences, mine, theirs, other.weight, sum, room, n);
  }
  if (factor != 1.0) ScaleInto(wide, factor, sum, sum, n);
  if (SizeOf(dtype) > 2) {
    std::memcpy(out + at, sum, static_cast<size_t>(n * SizeOf(dtype)));
  } else {
    FromFloat(dtype, reinterpret_cast<const float*>(sum), out + at, n);
  }
}

struct Piece {
  size_t part;
  int64_t begin, count;  // elements
};
using Slice = std::vector<Piece>;

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
    std::vector<Other> others;
    for (const Piece& piece : slice_) {
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
      MixInto(mixing.dtype, mixing.factor, part.row.self, part.input + piece.begin * element,
              others, part.output + piece.begin * element, piece.count);
    }
  }

 private:
  void Plan(const std::vector<Part>& parts, const Mixing& mixing, std::map<int, int64_t>& incoming,
            std::map<int, std::vector<Span>>& outgoing) {
    const int64_t element = SizeOf(mixing.dtype);
    size_t sent = 0;
    for (const Piece& piece : slice_) sent += parts[piece.part].row.to.size();
    factors_.reserve(sent);  // spans point into it
    for (const Piece& piece : slice_) {
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

void MixInto(DataType dtype, double factor, double self, const std::byte* own,
             std::span<const Other> others, std::byte* out, int64_t count) {
  if (others.empty()) {
    ScaleInto(dtype, factor * self, own, out, count);
    return;
  }
  const bool halves = others.size() == 1 && self == 0.5 && others[0].weight == 0.5;
  if (halves) {  // exact as it is, in one pass
    CombineInto(dtype, 0.5 * factor, own, 0.5 * factor, others[0].data, out, count);
    return;
  }
  const bool differences = SumsToOne(self, others);
  for (int64_t begin = 0; begin < count; begin += kBlock)
    MixBlock(dtype, factor, self, own, others, begin, differences, out,
             std::min(kBlock, count - begin));
}

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

}  // namespace horon::gossip
