// StartGate: how a rank learns, where no lane shows it, that all ranks have started a locked batch.
// Before that it may do nothing with the batch that it could not take back.
//
// Inside a node nothing is sent: each rank writes to the node's segment which batch it has started,
// and the node's first rank, which reads that, writes which one all ranks of the job have. Between
// nodes dissemination among their first ranks: in round r each tells the one 2^r nodes on up to
// which batch all nodes it has heard of have come; after ceil(log2 N) rounds that is all.
// What is said only grows, so a word that is still on its way is overtaken by later ones, and a burst of
// batches takes few messages. Each has kBytes: the decision that locked the schedule, a hash of
// what is in it, and the number of the batch. Words of an older schedule mean nothing any more.
//
// Part of the executor; holder of the baton only.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/core/entry.h"
#include "runtime/transport/communicator.h"
#include "runtime/transport/segment.h"

namespace horon {

class StartGate final {
 public:
  static constexpr int64_t kBytes = sizeof(Locked);

  // `segment`: this node's; null if it has one rank. Counts messages in "schedule.messages".
  StartGate(const Fabric& fabric, std::shared_ptr<SharedSegment> segment, Counters& counters);

  // This rank has started the batch, and all of the schedule before it.
  void Start(const Locked& batch);
  // Whether all ranks have started it.
  bool Passed(const Locked& batch) const { return batch.number <= passed_; }
  // Sends and hears. Whether anything moved; a failure means that a peer is lost.
  Result<bool> Advance();
  // The schedule was left after batch `last`, which all ranks have started: nothing more is heard
  // until another one starts.
  void Close(uint64_t last);

 private:
  struct Round {
    int to = 0, from = 0;
    Locked said, saying, heard, hearing;
    bool receiving = false;
    Transfer send, receive;  // last: cancelled before the words go
  };
  bool Write();
  Result<bool> ReadFirst();
  Result<bool> ReadNode();
  Result<bool> AdvanceRounds();
  void TellNode();
  Result<bool> Hear(Round& round, Tag tag);
  Result<bool> Say(Round& round, Tag tag, const Locked& reached);
  Status Post(Transfer& transfer, Transfer::Direction direction, int peer, Tag tag, Locked& word);

  const Fabric* fabric_;
  std::shared_ptr<SharedSegment> segment_;
  const std::vector<int>* node_;  // its ranks
  int me_;                        // this one's place among them
  std::vector<Round> rounds_;     // of a node's first rank
  Locked started_;                // by this rank
  uint64_t written_ = 0, told_ = 0;
  std::vector<Locked> reached_;  // by this node before the rounds; after each of them
  uint64_t passed_ = 0;          // all ranks have started the batches up to this one
  bool open_ = false;
  Counter& messages_;
};

}  // namespace horon
