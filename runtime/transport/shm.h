// ShmTransport: messages between the ranks of one node through the rings of their segment.
//
// One ShmPeer for each of them has the protocol (shm_peer.h); ShmBells wakes them (shm_bells.h).
// Per pair and tag, messages match in the order of posting. A rank that dies fails everything, once:
// after Abandon those that live go on over their rings, which no cancelled message leaves torn.
// Called by the holder of the baton only.
//
// The same class serves thread ranks in one process over a heap segment ("inproc"): the protocol
// that processes use is the one that the thread sanitizer sees.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/transport/segment.h"
#include "runtime/transport/shm_bells.h"
#include "runtime/transport/shm_peer.h"
#include "runtime/transport/transport.h"

namespace horon {

class ShmTransport final : public Transport {
 public:
  // `members`: the node's global ranks, ascending; this process is members[local_rank]. `direct`:
  // ShmPeer reads large messages where they lie. `read`: bytes that were.
  ShmTransport(std::shared_ptr<SharedSegment> segment, std::vector<int> members, int local_rank,
               std::string name, bool direct = true, Counter* read = nullptr);
  ~ShmTransport() override;

  std::string_view name() const override { return name_; }
  bool Reaches(int peer) const override;
  Status Post(Transfer& transfer) override;
  Result<bool> Progress() override;
  int Sender(Tag tag) override;
  void Cancel(Transfer& transfer) override;
  void Flush() override;
  void Abandon() override;
  bool OutlivesRanks() const override { return true; }

 private:
  Status CheckDeaths();
  bool Pull();
  void FailAll(const Status& status);

  std::shared_ptr<SharedSegment> segment_;
  std::vector<int> members_;
  int local_rank_;
  std::string name_;
  ShmBells bells_;
  OfferedMemory offered_;
  std::vector<std::unique_ptr<ShmPeer>> peers_;  // by local rank; null for myself
  size_t next_pull_ = 0;                         // whose large messages are read next
  std::unordered_map<int, int> local_of_;        // global rank -> local rank
  Status failure_;
  bool abandoned_ = false;  // deaths are somebody else's business
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
