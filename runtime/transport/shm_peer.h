// ShmPeer: the messages between this rank and one other of its node, through their two rings.
//
// Small messages (up to kEagerBytes) travel at once; a receiver that did not ask yet keeps a copy.
// Larger ones are announced, granted when the receive is posted, then streamed in pieces straight
// into the receiver's spans: an unposted receive never blocks the ring behind it, so no order of
// buckets can deadlock. Messages of equal tag match in the order of posting. Owned and called by
// ShmTransport, on the holder of the baton.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/transport/ring.h"
#include "runtime/transport/shm_bells.h"
#include "runtime/transport/spans.h"
#include "runtime/transport/transport.h"

namespace horon {

class ShmPeer {
 public:
  static constexpr int64_t kEagerBytes = 16 << 10;

  // `rank` is the peer's in the job; `me` and `local`, mine and the peer's, are those in the node.
  ShmPeer(SharedSegment& segment, ShmBells& bells, int me, int local, int rank);

  // Both write at once what the ring has room for, and ring the peer's bell.
  void PostSend(Transfer& transfer);
  void PostReceive(Transfer& transfer);
  // Whether anything was written; the caller rings for it.
  bool ProgressSends();
  // Whether anything was read. *was_full: whether the writer may have found no room at any time
  // during this. kInternal when the ring holds what no peer writes.
  Result<bool> ProgressReceives(bool* was_full);
  void Cancel(Transfer& transfer);
  void FailAll(const Status& status);  // everything in flight

 private:
  enum class Kind : uint32_t { kEager = 1, kAnnounce = 2, kGrant = 3, kData = 4, kAbandon = 5 };
  struct Packet {
    Kind kind;
    Tag tag;
    int64_t bytes;  // of this packet's payload; of the whole message in kAnnounce
    uint64_t id;    // the sender's number of a large message
  };
  struct Unexpected {
    Tag tag;
    bool announced;
    uint64_t id;
    int64_t bytes;
    std::vector<std::byte> payload;
  };
  struct Streaming {               // a granted large message, either side
    Transfer* transfer = nullptr;  // null: cancelled, its bytes are dropped
    int64_t bytes = 0;
    int64_t moved = 0;
    SpanCursor at;  // where `moved` lies in the transfer's spans
  };

  bool WriteStart(Transfer& transfer);
  bool WriteData();
  void Grant(Transfer& transfer, uint64_t id, int64_t bytes);
  Transfer* TakeReceive(Tag tag);
  Status ReadPacket(const Packet& packet);
  Status ReadEager(const Packet& packet);
  Status ReadAnnounce(const Packet& packet);
  Status ReadGrant(const Packet& packet);
  Status ReadData(const Packet& packet);
  Status ReadAbandon(const Packet& packet);

  int rank_, local_;
  int64_t ring_bytes_;
  ShmBells* bells_;
  RingWriter writer_;
  RingReader reader_;
  std::deque<Transfer*> starting_;                        // posted sends, not in the ring yet
  std::deque<Packet> replies_;                            // grants to write
  std::unordered_map<uint64_t, Transfer*> announced_;     // sends that wait for a grant
  std::deque<std::pair<uint64_t, Streaming>> streaming_;  // granted sends by number, oldest first
  std::deque<Transfer*> receives_;                        // posted, unmatched
  std::deque<Unexpected> unexpected_;
  std::unordered_map<uint64_t, Streaming> incoming_;  // granted receives
  uint64_t next_id_ = 1;
};

}  // namespace horon
