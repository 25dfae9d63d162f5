// MpiTransport: messages between ranks over MPI_Isend, MPI_Irecv and MPI_Testsome. Inside the
// plugin.
//
// A message is one MPI message whatever its size: one run of bytes goes as it is, several small
// ones are packed through a pooled buffer, several large ones travel as an MPI datatype that lists
// them. Nothing blocks but taking back a transfer that MPI has already begun, and a rank's last
// words in Leave, bounded by kPatience in all, and, without MPI_THREAD_MULTIPLE, the first use of a
// set of ranks by ReduceBlock. Once something has failed, or the job has, MPI is not called any
// more, but as follows.
//
// Where MPI goes on without the dead (OutlivesRanks in mpi_calls.h), transfers that outlive the job
// do, too. Abandon takes all others back from MPI; where that cannot be done at once, MPI would
// still read or write memory that is somebody else's by then, and is not called any more either.
//
// Only the holder of the baton calls any of this.
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/device/memory.h"
#include "runtime/transport/mpi_comm.h"
#include "runtime/transport/transport.h"

namespace horon {

class MpiTransport;

// The Iallreduces of one block, waited for by its coroutine. Lives in the coroutine's frame; polled
// by Progress too, so that a runtime which waits for progress sees it.
class PendingReduction final : public Waitable {
 public:
  explicit PendingReduction(MpiTransport& transport) : transport_(transport) {}
  ~PendingReduction() override;
  Status Start(MPI_Comm comm, const BlockReduction& reduction);
  bool Ready() override { return done_ || Poll(); }
  bool Poll();  // whether it finished just now
  void Fail(const Status& status);
  const Status& status() const { return status_; }

 private:
  MpiTransport& transport_;
  std::vector<MPI_Request> requests_;
  bool done_ = true;
  Status status_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiComm> world, Counters& counters, bool reduces_blocks,
               int64_t piece, bool reads_gpus = false);
  ~MpiTransport() override;

  std::string_view name() const override { return "mpi"; }
  bool Reaches(int peer) const override {
    return peer >= 0 && peer < world_->size() && !dead_[static_cast<size_t>(peer)];
  }
  Status Post(Transfer& transfer) override;
  Result<bool> Progress() override;
  int Sender(Tag tag) override;
  void Cancel(Transfer& transfer) override;
  void Abandon() override;
  bool OutlivesRanks() const override { return outlives_; }
  void Leave() override;
  bool reads_gpus() const override { return reads_gpus_; }
  // MPI wakes nobody, so a sleeper looks at least this often.
  std::chrono::microseconds poll_interval() const override { return std::chrono::microseconds{50}; }

  Status Prepare(const std::vector<int>& ranks) override;
  bool ReducesBlocks(const BlockReduction& reduction) const override;
  Task ReduceBlock(BlockReduction reduction) override;

 private:
  friend class PendingReduction;

  // A message that MPI has. Its request is requests_[the same index].
  struct Flight {
    Transfer* transfer = nullptr;             // null: cancelled, but MPI still has `packed`
    int source = -1;                          // of a receive
    MPI_Datatype layout = MPI_DATATYPE_NULL;  // of several large spans
    Buffer packed;                            // of several small spans
  };
  struct Payload {  // the first three arguments of MPI_Isend
    void* data = nullptr;
    int count = 0;
    MPI_Datatype type = MPI_BYTE;
  };

  Result<Payload> Prepare(Flight& flight);
  Result<Payload> Pack(Flight& flight, int64_t total);
  Result<Payload> List(Flight& flight);
  void Complete(Flight& flight, MPI_Status& status, int code);
  void Remove(size_t index);
  void Withdraw(size_t index, const Status& why);
  bool Settle(int count, MPI_Request* requests, MPI_Status* statuses, int& code);
  bool TakeBack(size_t index, const Transfer* lends = nullptr);
  void Account(const Flight& flight, const MPI_Status& status);
  void Forsake();
  bool TakeBackAll();
  static void Orphan(Flight& flight, MPI_Request& request, const Status& why);
  void TellPeers();
  void NoteTorn(const Flight& flight, const Transfer& transfer);
  static bool IsLarge(const Transfer& transfer);
  Status Miss(int peer, int code);
  Status Miss(int peer, const std::string& why);
  bool PollReductions();
  static Status Lost(int peer, const std::string& why);
  static void Finish(Transfer& transfer, Status status, int64_t bytes);

  std::shared_ptr<MpiComm> world_;
  bool reduces_blocks_;
  int64_t piece_;  // kMpiPiece
  bool reads_gpus_;
  std::shared_ptr<Pool> pool_;
  Counter& messages_;
  Counter& bytes_;
  Counter& collectives_;
  std::vector<MPI_Request> requests_;
  std::vector<Flight> flights_;
  std::vector<int> finished_;  // Testsome's answer, kept to be used again
  std::vector<MPI_Status> statuses_;
  std::vector<PendingReduction*> reductions_;
  std::chrono::nanoseconds patience_;  // what is left of kPatience
  Status failure_;
  bool outlives_;           // the job, as yet
  bool abandoned_ = false;  // and it has
  bool torn_ = false;       // a message of a dead rank may still come into memory that is not kept
  bool given_back_ = false;  // some such memory is lent no more
  std::vector<bool> dead_;   // by rank
  std::vector<Tag> listened_;  // by rank: of a receive that outlives the job; 0: there was none
};

}  // namespace horon
