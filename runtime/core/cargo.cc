#include "runtime/core/cargo.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/base/fault.h"
#include "runtime/core/start_gate.h"

namespace horon {
namespace {

// Of all nodes' parts of one batch: what must wait for no other message between hosts.
constexpr int64_t kMostOfAllNodes = 64 << 10;
// Of what is not whole without its slices, which move fewer bytes.
constexpr int64_t kBeginning = 4096;

}  // namespace

Cargo::Cargo(std::span<const Segment> tensors, Reduction reduction, double prescale,
             Limits limits, Phases* phases)
    : reduction_(reduction), prescale_(prescale) {
  const auto reach = [&](int64_t bytes) {
    const int64_t most = bytes / SizeOf(reduction.dtype);
    size_t used = 0;
    count_ = 0;
    while (used < tensors.size() && count_ <= most) count_ += tensors[used++].count;
    const bool all = count_ <= most;
    count_ = std::min(count_, most);
    tensors_ = tensors.first(used);
    return all;
  };
  whole_ = reach(limits.whole);
  if (!whole_) reach(limits.beginning);
  bytes_ = count_ * SizeOf(reduction.dtype);
  if (whole_) phases_ = phases;  // else they are those of what comes after it
}

// Those with elements: where each begins in the cargo, in bytes, and how many of them it has there.
template <typename F>
void Cargo::ForEach(F&& tensor_part) const {
  int64_t before = 0;
  for (const Segment& tensor : tensors_) {
    const int64_t count = std::min(tensor.count, count_ - before);
    if (count > 0) tensor_part(tensor, before * SizeOf(reduction_.dtype), count);
    before += count;
  }
}

Cargo::~Cargo() {
  if (gate_ != nullptr) gate_->Withdraw(*this);
}

CargoHold::CargoHold(const Fabric& fabric, SharedSegment* segment)
    : segment_(segment),
      node_(fabric.topology.node_of(fabric.rank)),
      nodes_(fabric.topology.nodes()),
      ranks_(fabric.topology.local_size(fabric.rank)),
      me_(fabric.topology.local_rank(fabric.rank)),
      limits_{std::min(kGatePlaceBytes, kMostOfAllNodes / nodes_),
              std::min(kBeginning, kMostOfAllNodes / nodes_)} {}

// Where this rank's lie for its node's first rank. Alone, that is where its node's are.
std::byte* CargoHold::Given(uint64_t place, int rank) {
  return ranks_ > 1 ? segment_->cargo(rank, place) : At(place).blocks.data();
}

std::byte* CargoHold::Sums(uint64_t place) {
  if (ranks_ > 1) return segment_->sums(place);
  alone_.resize(kPlaces * kGatePlaceBytes);
  return alone_.data() + static_cast<int64_t>(place % kPlaces) * kGatePlaceBytes;
}

void CargoHold::Size(Place& at, int64_t bytes) {
  at.bytes = bytes;
  const auto all = static_cast<size_t>(bytes * nodes_);
  if (at.blocks.size() < all) at.blocks.resize(all);
}

void CargoHold::Pack(const Cargo& cargo) {
  FaultPoint(FaultPhase::kCopyIn);
  const PhaseTimer timer(cargo.phases_, &Phases::packing);
  if (me_ == 0) Size(At(cargo.place_), cargo.bytes_);
  const DataType dtype = cargo.reduction_.dtype;
  std::byte* const to = Given(cargo.place_, me_);
  cargo.ForEach([&](const Segment& tensor, int64_t at, int64_t count) {
    ScaleInto(dtype, cargo.prescale_, tensor.input, to + at, count);
  });
}

void CargoHold::Unpack(const Cargo& cargo) {
  FaultPoint(FaultPhase::kCopyOut);
  const PhaseTimer timer(cargo.phases_, &Phases::unpacking);
  const int64_t element = SizeOf(cargo.reduction_.dtype);
  const std::byte* const from = Sums(cargo.place_);
  cargo.ForEach([&](const Segment& tensor, int64_t at, int64_t count) {
    std::memcpy(tensor.output, from + at, static_cast<size_t>(count * element));
  });
}

RecycledVector<const std::byte*> CargoHold::GivenByNode(uint64_t place) {
  RecycledVector<const std::byte*> inputs;
  for (int rank = 0; rank < ranks_; ++rank) inputs.push_back(Given(place, rank));
  return inputs;
}

// The only node's are rounded once, with those of all nodes.
void CargoHold::AddNode(const Cargo& cargo) {
  if (ranks_ == 1 || nodes_ == 1) return;
  const PhaseTimer timer(cargo.phases_, &Phases::reducing);
  ReduceInto(cargo.reduction_.kind, cargo.reduction_.dtype, 1.0, GivenByNode(cargo.place_),
             At(cargo.place_).blocks.data(), cargo.count_);
}

std::span<const std::byte> CargoHold::Blocks(uint64_t place, int count) const {
  const Place& at = At(place);
  return {at.blocks.data(), static_cast<size_t>(count * at.bytes)};
}

Status CargoHold::Store(uint64_t place, int from, int count, std::span<const std::byte> blocks) {
  Place& at = At(place);
  const auto bytes = static_cast<int64_t>(blocks.size());
  if (bytes % count != 0 || bytes / count > limits_.whole)
    return Status::Internal("a locked batch came with " + std::to_string(bytes) + " bytes of " +
                            std::to_string(count) + " nodes");
  Size(at, bytes / count);
  if (bytes > 0) std::memcpy(at.blocks.data() + from * at.bytes, blocks.data(), blocks.size());
  return Status::Ok();
}

Status CargoHold::AddNodes(const Cargo& cargo) {
  FaultPoint(FaultPhase::kReduce);
  const PhaseTimer timer(cargo.phases_, &Phases::reducing);
  const Place& at = At(cargo.place_);
  if (at.bytes != cargo.bytes_)
    return Status::Internal("a locked batch of " + std::to_string(cargo.bytes_) +
                            " bytes has another size on another rank");
  RecycledVector<const std::byte*> inputs;
  if (nodes_ == 1) {
    inputs = GivenByNode(cargo.place_);
  } else {
    for (int node = 0; node < nodes_; ++node) {
      const int before = (node_ - node + nodes_) % nodes_;
      inputs.push_back(at.blocks.data() + before * at.bytes);
    }
  }
  ReduceInto(cargo.reduction_.kind, cargo.reduction_.dtype, cargo.reduction_.scale, inputs,
             Sums(cargo.place_), cargo.count_);
  return Status::Ok();
}

}  // namespace horon
