// SharedSegment: the memory that the ranks of one node share, and what lies where in it.
//
// One memfd (or, for thread ranks, one block of heap): a block of words and a notice per rank, a
// message ring per ordered pair of ranks (ring.h), what travels with the gate's words
// (core/cargo.h), and the lanes' slots (lane.h). Pages are touched on first use, so a large layout
// costs nothing until it is used. Every word has one writer, but the doorbell.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/doorbell.h"
#include "runtime/base/own_descriptors.h"
#include "runtime/base/status.h"

namespace horon {

inline constexpr size_t kCacheLine = 64;

// What a rank tells the others. kDead is written for it, by whoever saw it die.
enum class RankState : uint32_t { kAbsent = 0, kJoined = 1, kLeft = 2, kDead = 3 };

// Which batch of which locked schedule a rank has come to (core/start_gate.h). One writer; read
// whole where the version is even and the same before and after.
struct GateWords {
  std::atomic<uint64_t> version{0}, schedule{0}, plan{0}, number{0};
};

struct RankWords {
  alignas(kCacheLine) Doorbell bell;
  alignas(kCacheLine) std::atomic<uint32_t> state{0};
  char death[508] = {};  // how it died: one sentence, written before kDead
  // peer_memory.h: who I am, 0 while nobody may read my memory, and a number that lies in it.
  alignas(kCacheLine) std::atomic<int64_t> process{0};
  uint64_t proof = 0, proof_at = 0;
  alignas(kCacheLine) std::atomic<uint64_t> place{0};  // where it last looked or rang
  alignas(kCacheLine) GateWords started;  // all that this rank has started
  alignas(kCacheLine) GateWords passed;   // written by the node's first rank: all ranks have
};

// What a rank's watch thread lets the others of its node read (core/notice.h), and how often its
// runtime has run the cycle, which the holder of its baton counts.
struct NoticeWords {
  static constexpr size_t kWords = 488;
  alignas(kCacheLine) std::atomic<uint64_t> cycles{0};
  alignas(kCacheLine) std::atomic<uint32_t> version{0};  // odd while it is being written
  std::atomic<uint32_t> bytes{0};
  alignas(kCacheLine) std::atomic<uint64_t> words[kWords]{};
};

// One direction of one pair: a byte stream. `head` counts bytes written, `tail` bytes read, for
// ever.
struct RingWords {
  alignas(kCacheLine) std::atomic<uint64_t> head{0};
  // Times that the writer took back memory which it had let the reader read.
  std::atomic<uint32_t> revoked{0};
  alignas(kCacheLine) std::atomic<uint64_t> tail{0};
};

// Batches of a locked schedule whose beginnings are on their way, and the bytes of each.
inline constexpr uint64_t kGatePlaces = 4;
inline constexpr int64_t kGatePlaceBytes = 16 << 10;

inline constexpr int kSlots = 4;  // chunks in flight per lane

// Progress of one rank in one lane, in chunks since the segment was made.
struct LaneWords {
  alignas(kCacheLine) std::atomic<uint64_t> packed{0};   // chunks copied into my slots
  std::atomic<uint64_t> bucket[kSlots]{};                // whose first chunk a slot has
  alignas(kCacheLine) std::atomic<uint64_t> reduced{0};  // chunks whose part that I own is reduced
  std::atomic<uint64_t> layout[kSlots]{};  // where the tensors of the same bucket lie (InPlace)
  alignas(kCacheLine) std::atomic<uint64_t> taken{0};  // chunks that I need no more
  // Chunks packed, once more (lane_distance.h). Where no core fetches it ahead with lines before.
  alignas(8 * kCacheLine) std::atomic<uint64_t> beat{0};
};

struct SegmentShape {
  int ranks = 1;           // of the node
  int64_t ring_bytes = 0;  // power of two
  int lanes = 8;
  int slots = kSlots;
  int64_t chunk_bytes = 0;  // multiple of the cache line
  int64_t row_bytes = 0;    // of a lane and rank, for what is gone through several times

  static SegmentShape For(int ranks, int64_t ring_bytes, int64_t chunk_bytes);
  int64_t bytes() const;
};

class SharedSegment {
 public:
  // A zeroed anonymous segment in this process (thread ranks), or a memfd for other processes.
  static Result<std::shared_ptr<SharedSegment>> InProcess(const SegmentShape& shape);
  static Result<std::shared_ptr<SharedSegment>> Create(const SegmentShape& shape);
  // Maps what another rank created. Takes the descriptor, also on failure. kInvalidArgument when
  // its shape is not `shape` (the ranks disagree on HORON_SHM_*).
  static Result<std::shared_ptr<SharedSegment>> Map(int fd, const SegmentShape& shape);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  const SegmentShape& shape() const { return shape_; }
  int fd() const { return fd_; }  // -1 in process
  // A rank's share of the pages that were touched; 0 in process.
  int64_t share_bytes() const;
  // Whether the node has more cores than ranks. Every rank hears the same: ranks that are bound to
  // cores of their own would count differently.
  bool spare_core() const;
  RankWords& rank(int r);
  // Rank `me` rings another one's bell, as Doorbell::Ring does, and says where it is if that one
  // sleeps.
  uint32_t Ring(int to, int me, uint32_t whom);
  NoticeWords& notice(int r);
  int FirstDead() const;  // local rank; -1 while all live
  // Counts deaths: one word to look at instead of all states.
  std::atomic<uint32_t>& deaths();
  // Marks a rank dead and rings everybody. Any thread, any process; the first sentence wins.
  void MarkDead(int rank, const std::string& sentence);
  // kUnavailable with the sentence of the first dead rank, as rank `me` should hear it. Any thread.
  Status Deaths(int me);
  // The sentence of the first dead rank but `me`; `sentence`, about a rank elsewhere, if there is
  // none. Any thread.
  std::string FirstKnown(int me, const std::string& sentence);
  // I leave in peace; a rank that was marked dead stays so.
  void MarkLeft(int rank);
  RingWords& ring(int from, int to);
  std::byte* ring_bytes(int from, int to);
  // What a rank's small batch has to be added; the sums of all, which the first rank writes.
  std::byte* cargo(int rank, uint64_t place);
  std::byte* sums(uint64_t place) { return cargo(shape_.ranks, place); }
  LaneWords& lane(int lane, int rank);
  std::byte* slot(int lane, int rank, int slot);
  std::byte* row(int lane, int rank);  // row_bytes

 private:
  SharedSegment(const SegmentShape& shape, int fd, std::byte* base)
      : shape_(shape), fd_(Own(fd)), base_(base) {}
  static Result<std::shared_ptr<SharedSegment>> MapAt(const SegmentShape& shape, int fd, int flags);
  SegmentShape shape_;
  int fd_;
  std::byte* base_;
};

}  // namespace horon
