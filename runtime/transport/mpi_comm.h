// MpiComm: a communicator of all ranks, those of sets of ranks made from it, and an account of its
// messages. MpiComms: the process's, from one init to the next. Inside the plugin.
//
// None is ever freed: a message to a runtime that has left may still be on its way, and MPI gives
// the number of a freed communicator to the next one, where that message would then be received
// (seen with Open MPI 5.0: "rank 0 has left" in a new life). Instead the next life gets the same
// one again, once the ranks have told each other how many messages they sent on it, and each has
// received and dropped what was still missing.
//
// While a runtime lives only the holder of the baton calls MpiComm; Take is called by init.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/transport/mpi.h"

namespace horon {

class MpiComm {
 public:
  explicit MpiComm(MPI_Comm comm);
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(sent_.size()); }

  // Begins to make that of some of the ranks, ascending, unless it was begun before. All members
  // do. MPI has no call for this but one that blocks until the last has come, who may have died: it
  // runs on a thread of its own where MPI allows that (MPI_THREAD_MULTIPLE), otherwise here.
  void Make(const std::vector<int>& ranks);
  // MPI_COMM_NULL while it is being made.
  Result<MPI_Comm> Of(const std::vector<int>& ranks);
  // Whether one was finished since the last look.
  bool Look();

  // A message that MPI has taken, or given.
  void CountSent(int peer) { ++sent_[static_cast<size_t>(peer)]; }
  void CountReceived(int peer) { ++received_[static_cast<size_t>(peer)]; }
  // It cannot be used by another life: something on it failed, or stays with MPI for ever.
  void Spoil() { spoilt_ = true; }
  // MPI still has users' memory, which it must not reach any more: nobody may call it again.
  void Forsake() { forsaken_ = spoilt_ = true; }
  bool forsaken() const { return forsaken_; }

 private:
  friend class MpiComms;
  // Receives what was sent and never received, `expected` messages in all from each rank.
  Status Drain(const std::vector<int64_t>& expected, std::chrono::steady_clock::time_point deadline,
               const Patience& patience);
  Result<bool> DropFrom(int peer);
  bool free() const { return !spoilt_ && making_.empty(); }

  struct Made {
    std::atomic<bool> done{false};
    int code = MPI_SUCCESS;
    MPI_Comm comm = MPI_COMM_NULL;
  };

  MPI_Comm comm_;
  int rank_ = 0;
  bool spoilt_ = false, forsaken_ = false;
  std::vector<int64_t> sent_, received_;                    // by peer
  std::map<std::vector<int>, std::shared_ptr<Made>> sets_;  // by ascending ranks
  std::vector<std::shared_ptr<Made>> making_;  // those of sets_ that were not done at the last look
};

class MpiComms {
 public:
  // One of all ranks that nobody uses and on which nothing is under way. Collective; MPI is up.
  Result<std::shared_ptr<MpiComm>> Take(const Patience& patience);

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  Result<MPI_Comm> Duplicate(MPI_Comm from, Deadline deadline, const Patience& patience);
  Result<bool> TakeAgain(Deadline deadline, const Patience& patience);
  Status Meet(Deadline deadline, const Patience& patience);

  MPI_Comm meeting_ = MPI_COMM_NULL;  // for what is said here, and to make others from
  Status failure_;                    // why nobody can meet there any more
  std::shared_ptr<MpiComm> last_;     // the one that was made last
};

}  // namespace horon
