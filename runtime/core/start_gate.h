// StartGate: how a rank learns, where no lane shows it, that all ranks have started a locked batch.
// Before that it may do nothing with the batch that it could not take back.
//
// Dissemination over all ranks of the job: in round r each tells the one 2^r places on up to which
// batch everybody it has heard of has started; after ceil(log2 P) rounds that is everybody. What is
// said only grows, so a word that is still on its way is overtaken by later ones, and a burst of
// batches takes few messages. Each has kBytes: the decision that locked the schedule, a hash of
// what is in it, and the number of the batch. Words of an older schedule mean nothing any more.
//
// Part of the executor; holder of the baton only.
#pragma once

#include <vector>

#include "runtime/base/counters.h"
#include "runtime/core/entry.h"
#include "runtime/transport/communicator.h"

namespace horon {

class StartGate final {
 public:
  static constexpr int64_t kBytes = sizeof(Locked);

  // Counts what it sends in "schedule.messages".
  StartGate(const Fabric& fabric, Counters& counters);

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
  Result<bool> Hear(Round& round, Tag tag);
  Result<bool> Say(Round& round, Tag tag, const Locked& reached);
  Status Post(Transfer& transfer, Transfer::Direction direction, int peer, Tag tag, Locked& word);

  const Fabric* fabric_;
  std::vector<Round> rounds_;
  std::vector<Locked> reached_;  // before each round, and after the last
  uint64_t passed_ = 0;          // all ranks have started the batches up to this one
  bool open_ = false;
  Counter& messages_;
};

}  // namespace horon
