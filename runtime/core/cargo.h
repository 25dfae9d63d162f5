// Cargo: the beginning of a batch of a locked schedule, which travels with the word that it has
// started (start_gate.h) instead of after it: of a small batch all there is, in one exchange where
// there were two or three.
//
// CargoHold is where they lie meanwhile. Each rank packs its own; a node's first rank adds up those
// of its node, by ascending rank; between nodes what each node has goes to all others with the
// words; and every node's first rank adds all of it, by ascending node, for its node. Those are the
// additions of any other way of a bucket between nodes, in the same order (decision 6): the bits
// are the same. Nothing is written to a user's tensor before all ranks have started the batch.
//
// Places are counted: the k-th batch of a job that takes cargo has place k, on all ranks. A rank
// packs place k when it has unpacked place k - kPlaces.
//
// Part of the start gate; holder of the baton only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/phases.h"
#include "runtime/base/task.h"
#include "runtime/op/op.h"
#include "runtime/transport/communicator.h"
#include "runtime/transport/segment.h"

namespace horon {

class StartGate;

class Cargo final : public Waitable {
 public:
  // Bytes of a batch that travel with the word: all of it up to `whole`, else `beginning`.
  struct Limits {
    int64_t whole, beginning;
  };

  // Of the tensors, as one row. They have their outputs; all is lent until it is ready or
  // destroyed. `phases` may be null.
  Cargo(std::span<const Segment> tensors, Reduction reduction, double prescale, Limits limits,
        Phases* phases);
  ~Cargo() override;
  Cargo(const Cargo&) = delete;
  Cargo& operator=(const Cargo&) = delete;

  // The results are in the outputs.
  bool Ready() override { return done_; }
  int64_t bytes() const { return bytes_; }
  bool whole() const { return whole_; }  // there is nothing else in the tensors

 private:
  friend class CargoHold;
  friend class StartGate;
  template <typename F>
  void ForEach(F&& tensor_part) const;

  std::span<const Segment> tensors_;
  Reduction reduction_;
  double prescale_;
  Phases* phases_ = nullptr;
  int64_t count_ = 0, bytes_ = 0;
  bool whole_;
  // The gate's: null before it starts, and when it is done.
  StartGate* gate_ = nullptr;
  uint64_t number_ = 0, place_ = 0;  // of the batch; place 0: it is not packed
  bool gathered_ = false;            // by the node's first rank: those of its node
  bool done_ = false;
};

class CargoHold final {
 public:
  static constexpr uint64_t kPlaces = kGatePlaces;

  // `segment`: this node's; null if it has one rank.
  CargoHold(const Fabric& fabric, SharedSegment* segment);

  // Fewer bytes with many nodes, as messages of the last round carry those of half of all nodes.
  const Cargo::Limits& limits() const { return limits_; }

  void Pack(const Cargo& cargo);  // each rank its own
  void Unpack(const Cargo& cargo);
  // Of a node's first rank, when all of its node have packed.
  void AddNode(const Cargo& cargo);
  // What `count` nodes have: this one, the one before it, ...
  std::span<const std::byte> Blocks(uint64_t place, int count) const;
  // What the `count` nodes have that are `from`, `from` + 1, ... before this one. kInternal when it
  // is not as many bytes as they have.
  Status Store(uint64_t place, int from, int count, std::span<const std::byte> blocks);
  // When those of all nodes have come.
  Status AddNodes(const Cargo& cargo);

 private:
  // A node's first rank may hear of kPlaces places beyond those that it has not unpacked.
  static constexpr uint64_t kHeard = 2 * kPlaces;
  struct Place {
    int64_t bytes = 0;              // of one node
    std::vector<std::byte> blocks;  // of all nodes: this one's, the one's before it, ...
  };
  Place& At(uint64_t place) { return heard_[place % kHeard]; }
  const Place& At(uint64_t place) const { return heard_[place % kHeard]; }
  std::byte* Given(uint64_t place, int rank);
  RecycledVector<const std::byte*> GivenByNode(uint64_t place);
  std::byte* Sums(uint64_t place);
  void Size(Place& at, int64_t bytes);

  SharedSegment* segment_;
  int node_, nodes_, ranks_, me_;  // this rank's node, of so many; ranks in it, its place
  Cargo::Limits limits_;
  std::array<Place, kHeard> heard_;
  std::vector<std::byte> alone_;  // a lone rank's kPlaces sums
};

}  // namespace horon
