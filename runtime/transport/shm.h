// ShmTransport: messages between the ranks of one node through the rings of their segment.
//
// Small messages (up to kEagerBytes) travel at once; a receiver that did not ask yet keeps a copy.
// Larger ones are announced, granted when the receive is posted, then streamed in pieces straight
// into the receiver's spans: an unposted receive never blocks the ring behind it, so no order of
// buckets can deadlock. Per pair and tag, messages match in the order of posting.
//
// The same class serves thread ranks in one process over a heap segment ("inproc"): the protocol
// that processes use is the one that the thread sanitizer sees.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/transport/ring.h"
#include "runtime/transport/spans.h"
#include "runtime/transport/transport.h"

namespace horon {

class ShmTransport final : public Transport {
 public:
  static constexpr int64_t kEagerBytes = 16 << 10;

  // `members`: the node's global ranks, ascending; this process is members[local_rank].
  ShmTransport(std::shared_ptr<SharedSegment> segment, std::vector<int> members, int local_rank,
               std::string name);
  ~ShmTransport() override;

  std::string_view name() const override { return name_; }
  bool Reaches(int peer) const override;
  Status Post(Transfer& transfer) override;
  Result<bool> Progress() override;
  void Cancel(Transfer& transfer) override;
  void Flush() override;

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
  struct Peer {
    Peer(int global, RingWriter w, RingReader r) : rank(global), writer(w), reader(r) {}
    int rank;
    RingWriter writer;
    RingReader reader;
    std::deque<Transfer*> starting;                        // posted sends, not in the ring yet
    std::deque<Packet> replies;                            // grants to write
    std::unordered_map<uint64_t, Transfer*> announced;     // sends that wait for a grant
    std::deque<std::pair<uint64_t, Streaming>> streaming;  // granted sends by number, oldest first
    std::deque<Transfer*> receives;                        // posted, unmatched
    std::deque<Unexpected> unexpected;
    std::unordered_map<uint64_t, Streaming> incoming;  // granted receives
    uint64_t next_id = 1;
  };

  void Ring(int local);
  Status CheckDeaths();
  void FailAll(const Status& status);
  bool ProgressSends(Peer& peer);
  bool WriteStart(Peer& peer, Transfer& transfer);
  bool WriteData(Peer& peer);
  Result<bool> ProgressReceives(Peer& peer, bool* was_full);
  Status ReadPacket(Peer& peer, const Packet& packet);
  Status ReadEager(Peer& peer, const Packet& packet);
  Transfer* TakeReceive(Peer& peer, Tag tag);
  void PostReceive(Peer& peer, Transfer& transfer);
  void Grant(Peer& peer, Transfer& transfer, uint64_t id, int64_t bytes);
  Status ReadData(Peer& peer, const Packet& packet);
  static void Finish(Transfer& transfer, Status status, int64_t bytes);

  std::shared_ptr<SharedSegment> segment_;
  std::vector<int> members_;
  int local_rank_;
  std::string name_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by local rank; null for myself
  std::unordered_map<int, int> local_of_;     // global rank -> local rank
  Status failure_;
  std::vector<bool> owed_;  // by local rank: a background thread that was not woken yet
  int owed_for_ = 0;        // rounds of Progress since the first of them; 0: none
};

// Messages to myself: matched and copied when both sides are posted.
class SelfTransport final : public Transport {
 public:
  explicit SelfTransport(int rank) : rank_(rank) {}
  std::string_view name() const override { return "self"; }
  bool Reaches(int peer) const override { return peer == rank_; }
  Status Post(Transfer& transfer) override;
  Result<bool> Progress() override { return false; }
  void Cancel(Transfer& transfer) override;

 private:
  int rank_;
  std::deque<Transfer*> sends_, receives_;
};

}  // namespace horon
