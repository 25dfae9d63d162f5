// ShmPeer: the messages between this rank and one other of its node, through their two rings.
//
// Small messages (up to kEagerBytes) travel at once; a receiver that did not ask yet keeps a copy.
// Larger ones are announced, granted when the receive is posted, then streamed in pieces straight
// into the receiver's spans: an unposted receive never blocks the ring behind it, so no order of
// buckets can deadlock. Messages of equal tag match in the order of posting.
//
// From kShownBytes on the announcement says where the message lies, and a receiver that can
// (peer_memory.h) reads it there and says that it has; who cannot asks for it as above. A sender
// that takes a message back cannot know whether it is being read: it counts that in the ring's
// words, and whoever finds the count changed after reading asks for the message anew. Owned and
// called by ShmTransport, on the holder of the baton.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/transport/peer_memory.h"
#include "runtime/transport/ring.h"
#include "runtime/transport/shm_bells.h"
#include "runtime/transport/spans.h"
#include "runtime/transport/transport.h"

namespace horon {

class ShmPeer {
 public:
  static constexpr int64_t kEagerBytes = 16 << 10;
  static constexpr int64_t kShownBytes = 256 << 10;

  // `rank` is the peer's in the job; `me` and `local`, mine and the peer's, are those in the node.
  // `direct`: whether messages are read where they lie, if the system lets us; `read`: bytes that
  // were.
  ShmPeer(SharedSegment& segment, ShmBells& bells, int me, int local, int rank, bool direct,
          Counter* read = nullptr);

  // Both write at once what the ring has room for, and ring the peer's bell.
  void PostSend(Transfer& transfer);
  void PostReceive(Transfer& transfer);
  bool HasUnexpected(Tag tag) const;  // a message that no receive was posted for
  // Whether anything was written; the caller rings for it.
  bool ProgressSends();
  // Whether anything was read. *was_full: whether the writer may have found no room at any time
  // during this. kInternal when the ring holds what no peer writes.
  Result<bool> ProgressReceives(bool* was_full);
  // Whether that call found nothing, and nothing has come since.
  bool silent();
  // Reads the next piece of the oldest message that is read where it lies. False: there is none, or
  // the peer would not hear of it yet. ProgressSends has to follow.
  bool Pull();
  void Cancel(Transfer& transfer);
  // Everything in flight. The rings stay whole: the peer, if it lives, goes on with what it is told
  // of messages that were taken back.
  void FailAll(const Status& status);

 private:
  enum class Kind : uint32_t {
    kEager = 1,
    kAnnounce = 2,
    kGrant = 3,
    kData = 4,
    kAbandon = 5,
    kTaken = 6,
  };
  struct Packet {
    Kind kind;
    Tag tag;
    int64_t bytes;  // of this packet's payload; of the whole message in kAnnounce
    uint64_t id;    // the sender's number of a large message
    // Of kAnnounce: how many spans follow, where the message lies; RingWords::revoked by then.
    uint32_t shown = 0, revoked = 0;
  };
  struct Shown {
    RecycledVector<Span> spans;  // of the sender; none: it did not say
    uint32_t revoked = 0;
  };
  struct Unexpected {
    Tag tag;
    bool announced;
    uint64_t id;
    int64_t bytes;
    RecycledVector<std::byte> payload;
    Shown shown;
  };
  struct Streaming {               // a granted large message, either side
    Transfer* transfer = nullptr;  // null: cancelled, its bytes are dropped
    int64_t bytes = 0;
    int64_t moved = 0;
    SpanCursor at;  // where `moved` lies in the transfer's spans
    // Of what is read where it lies.
    Shown shown;
    SpanCursor shown_at;
  };

  template <typename T>
  using Line = std::deque<T, Recycling<T>>;
  template <typename T>
  using ByNumber = std::unordered_map<uint64_t, T, std::hash<uint64_t>, std::equal_to<>,
                                      Recycling<std::pair<const uint64_t, T>>>;

  bool WriteStart(Transfer& transfer);
  bool WriteData();
  void Accept(Transfer& transfer, uint64_t id, int64_t bytes, Shown shown);
  bool Intact(const Shown& shown) const;
  void AskAgain(uint64_t id, Streaming& stream);
  void Revoke();
  Transfer* TakeReceive(Tag tag);
  Status ReadPacket(const Packet& packet);
  Status ReadEager(const Packet& packet);
  Status ReadAnnounce(const Packet& packet);
  Status ReadGrant(const Packet& packet);
  Status ReadData(const Packet& packet);
  Status ReadAbandon(const Packet& packet);
  void ReadTaken(const Packet& packet);

  int rank_, local_;
  bool direct_;
  std::atomic<uint32_t>* my_revoked_;
  std::atomic<uint32_t>* their_revoked_;
  PeerMemory memory_;
  Counter* read_;
  int64_t ring_bytes_;
  ShmBells* bells_;
  RingWriter writer_;
  RingReader reader_;
  bool heard_ = false;  // the last ProgressReceives found something
  Line<Transfer*> starting_;         // posted sends, not in the ring yet
  Line<Packet> replies_;             // grants, and what was taken, to write
  ByNumber<Transfer*> announced_;    // sends that wait for a grant, or are read
  Line<std::pair<uint64_t, Streaming>> streaming_;  // granted sends by number, oldest first
  Line<Transfer*> receives_;                        // posted, unmatched
  Line<Unexpected> unexpected_;
  ByNumber<Streaming> incoming_;  // granted receives, or being read
  Line<uint64_t> pulling_;        // of these, oldest first: being read
  uint64_t next_id_ = 1;
};

}  // namespace horon
