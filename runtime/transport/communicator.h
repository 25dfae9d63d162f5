// Communicator: a group of ranks as one bucket sees it. Ranks in it are 0..size()-1, in ascending
// order of their global ranks. It knows which transport reaches whom, which members share a node,
// and carries the bucket's tag, so that ops and collectives name neither transports nor tags.
//
// Cheap to make (one per bucket); used by the holder of the baton only.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/phases.h"
#include "runtime/device/memory.h"
#include "runtime/transport/topology.h"
#include "runtime/transport/transport.h"

namespace horon {

class Lane;  // streaming inside a node, transport/lane.h

// Everything that outlives a bucket: shared by all communicators of a runtime.
struct Fabric {
  int rank = 0;  // this process's global rank
  Topology topology;
  std::vector<Transport*> route;    // by global rank; the transport that reaches it (self too)
  std::shared_ptr<Pool> host_pool;  // scratch
};

class Communicator {
 public:
  // A bucket's tags: 8 levels (0 is its own, 1..7 are Sub's) of 16 streams from its base on.
  static constexpr Tag kTags = 128;
  static constexpr int kLevels = 8, kStreams = 16;

  // `ranks`: ascending global ranks that include fabric.rank. `base` is the bucket's first tag, a
  // multiple of kTags; the kTags tags from there on belong to it.
  Communicator(const Fabric& fabric, std::vector<int> ranks, Tag base, Lane* lane = nullptr);
  // The same members for another bucket: nothing is made anew.
  Communicator(const Communicator& other, Tag base, Lane* lane)
      : fabric_(other.fabric_), members_(other.members_), base_(base), lane_(lane) {}

  int rank() const { return members_->me; }
  int size() const { return static_cast<int>(ranks().size()); }
  int global(int rank) const { return ranks()[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks() const { return members_->ranks; }
  Pool& pool() const { return *fabric_->host_pool; }

  // Start one transfer with a member. `stream` (0..15) separates exchanges that run at once.
  Status Send(Transfer& transfer, int to, std::span<const Span> spans, int stream = 0);
  Status Send(Transfer& transfer, int to, Span span, int stream = 0) {
    return Send(transfer, to, {&span, 1}, stream);
  }
  Status Receive(Transfer& transfer, int from, std::span<const Span> spans, int stream = 0);
  Status Receive(Transfer& transfer, int from, Span span, int stream = 0) {
    return Receive(transfer, from, {&span, 1}, stream);
  }

  // The same bucket among some of its members (indices in this communicator, me included). They are
  // numbered, and reductions add them, in the order given: ascending, or by node where that
  // differs. `level` (1..7) keeps its messages apart from those of other levels that run at once.
  // The first few groups of members are kept: for other buckets nothing is made anew.
  Communicator Sub(std::span<const int> members, int level) const;
  // The same on this one's tags (level 1's, if this is the bucket's whole group): for parts in
  // which no pair of members meets that meets in another part, or here, at the same time.
  Communicator Part(std::span<const int> members) const;
  // All members, with one stream for a collective of their own: the place-th of kPlaces.
  static constexpr int kPlaces = (kLevels - 2) * kStreams;  // those of levels 1 to 6
  Communicator At(int place) const;
  // Whether this is the bucket's whole group, not made by Sub, Part or At.
  bool top() const;

  // Node of a member, numbered within this communicator in the order of their first members;
  // whether all share one; members per node, ascending.
  int node_of(int rank) const { return members_->node_of[static_cast<size_t>(rank)]; }
  const std::vector<std::vector<int>>& nodes() const { return members_->nodes; }
  const std::vector<int>& own_node() const { return nodes()[static_cast<size_t>(node_of(rank()))]; }
  bool one_node() const { return nodes().size() == 1; }
  size_t smallest_node() const;  // members of the node that has the fewest
  // One member per node.
  bool all_apart() const { return nodes().size() == ranks().size(); }

  // Every member counts as a node of its own, and is sent messages. Between nodes only: one node
  // stays one.
  void Flatten();
  bool flattened() const { return flattened_; }

  // From now on notes when the first message is handed over; so do those made of it.
  void Follow(Phases* phases) { phases_ = phases; }

  // Streams elementwise reductions through the shared segment when all members share a node.
  Lane* lane() const { return lane_; }
  // Whether messages to a member may come out of a GPU's memory.
  bool reads_gpus(int member) const;
  // The one transport between this rank and all others; null when there are several or none.
  Transport* only_transport() const;

 private:
  struct Members {
    Members(const Fabric& fabric, std::vector<int> ranks);

    std::vector<int> ranks;
    int me = 0;  // my place in them
    std::vector<int> node_of;
    std::vector<std::vector<int>> nodes;
    // Groups of them that Sub keeps, each as it was asked for; by the holder of the baton.
    static constexpr size_t kParts = 8;
    struct Part {
      std::vector<int> members;
      std::shared_ptr<const Members> kept;
    };
    mutable std::vector<Part> parts;
  };
  Communicator(const Communicator& other, std::shared_ptr<const Members> members, Tag base)
      : fabric_(other.fabric_), members_(std::move(members)), base_(base), lane_(nullptr) {}
  std::shared_ptr<const Members> MembersOf(std::span<const int> part) const;
  Status Start(Transfer& transfer, Transfer::Direction direction, int peer,
               std::span<const Span> spans, int stream);

  const Fabric* fabric_;
  std::shared_ptr<const Members> members_;
  Tag base_;  // of this level: the bucket's base + 16 * level
  Lane* lane_;
  bool flattened_ = false;
  Phases* phases_ = nullptr;
};

}  // namespace horon
