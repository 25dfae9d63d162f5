// StartGate: how a rank learns, where no lane shows it, that all ranks have started a locked batch.
// Before that it may do nothing with the batch that it could not take back.
//
// Inside a node nothing is sent: each rank writes to the node's segment which batch it has started,
// and the node's first rank, which reads that, writes which one all ranks of the job have. Between
// nodes dissemination among their first ranks: in round r each tells the one 2^r nodes on up to
// which batch all nodes it has heard of have come; after ceil(log2 N) rounds that is all.
// What is said only grows, so a word that is still on its way is overtaken by later ones, and a burst of
// batches takes few messages. A word has kBytes: the decision that locked the schedule, a hash of
// what is in it, and the number of the batch. Of an elementwise op's batch it is the header of a
// message, with the place of the cargo (cargo.h) behind it and the beginning of the batch's data,
// which is all of a small one: no further message is needed for it. Those words are all said.
// Words of an older schedule mean nothing any more.
//
// Part of the executor; holder of the baton only.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/core/cargo.h"
#include "runtime/core/entry.h"
#include "runtime/transport/communicator.h"
#include "runtime/transport/segment.h"

namespace horon {

class StartGate final {
 private:
  struct Word {
    Locked batch;
    uint64_t place = 0;  // of the batch's cargo, which follows; 0: it has none
  };

 public:
  static constexpr int64_t kBytes = sizeof(Locked);  // of a word without cargo

  // `segment`: this node's; null if it has one rank. Counts messages: words that come alone in
  // "schedule.messages", those with cargo in "schedule.carried".
  StartGate(const Fabric& fabric, std::shared_ptr<SharedSegment> segment, Counters& counters);

  const Cargo::Limits& cargo_limits() const { return hold_.limits(); }

  // This rank has started the batch, the next one of its schedule. All ranks give it cargo, or
  // none does.
  void Start(const Locked& batch, Cargo* cargo = nullptr);
  // Whether all ranks have started it.
  bool Passed(const Locked& batch) const {
    return batch.number <= all_ || batch.number <= closed_;
  }
  // Whether others wait for what this rank has yet to send, also when it waits for nothing.
  bool owes() const;
  // Sends and hears. Whether anything moved; a failure means that a peer is lost.
  Result<bool> Advance();
  // The schedule was left after batch `last`, which all ranks have started: what comes of others
  // is forgotten, and their cargo was withdrawn. That of `last` and those before still comes; then
  // nothing more is heard until another one starts.
  void Close(uint64_t last);
  // Nothing more is sent or heard, and no cargo touched.
  void Stop();

 private:
  friend class Cargo;
  struct Started {
    Locked batch;
    Cargo* cargo;
  };
  struct Carried {
    uint64_t number, place;
  };
  struct Round {
    int to = 0, from = 0;
    int begin = 0, blocks = 0;  // what comes of it: nodes from `begin` before this one on
    uint64_t said = 0, heard = 0;  // numbers of batches of this schedule
    uint64_t said_place = 0;       // of the last cargo that was said
    bool receiving = false;
    std::vector<std::byte> saying, hearing;
    Transfer send, receive;  // last: cancelled before the bytes go
  };

  void Withdraw(Cargo& cargo);
  bool Publish();
  void Begin(const Locked& batch);
  Result<bool> ReadFirst();
  Result<bool> ReadNode();
  Result<bool> AdvanceRounds();
  Result<bool> Hear(Round& round, Tag tag);
  Status Take(Round& round, const Word& word);
  Result<bool> Say(Round& round, Tag tag, uint64_t reached);
  Word Next(const Round& round, uint64_t reached) const;
  Status Post(Transfer& transfer, Transfer::Direction direction, int peer, Tag tag, Span bytes);
  Status AddCargo();
  void TellNode();
  bool Deliver();
  void Settle();
  bool Settled() const;

  const Fabric* fabric_;
  std::shared_ptr<SharedSegment> segment_;
  CargoHold hold_;
  const std::vector<int>* node_;  // its ranks
  int me_;                        // this one's place among them
  std::vector<Round> rounds_;     // of a node's first rank

  RecycledVector<Started> waiting_;   // not yet said, in order: for a place for their cargo
  RecycledVector<Cargo*> under_way_;  // packed and not unpacked, in order
  RecycledVector<Carried> carrying_;  // cargo that not all rounds have said
  uint64_t places_ = 0;               // given to cargo so far
  Locked started_;                    // by this rank, as far as it says so
  uint64_t written_ = 0, told_ = 0;
  std::vector<uint64_t> reached_;  // by this node before the rounds; after each of them
  uint64_t all_ = 0;               // have started the batches up to this one, and its cargo is here
  uint64_t closed_ = 0;            // and up to this one by a decision
  bool open_ = false, closing_ = false;
  Counter &messages_, &carried_;
};

}  // namespace horon
