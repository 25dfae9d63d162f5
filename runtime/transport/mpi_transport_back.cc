// MpiTransport: taking back what MPI has been given.
#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "runtime/transport/mpi_calls.h"
#include "runtime/transport/mpi_transport.h"
#include "runtime/transport/spans.h"

namespace horon {
// Waits until MPI is through with the requests, within what is left of kPatience.
bool MpiTransport::Settle(int count, MPI_Request* requests, MPI_Status* statuses, int& code) {
  const auto start = std::chrono::steady_clock::now();
  int through = 0;
  while (true) {
    code = MPI_Testall(count, requests, &through, statuses);
    if (through != 0 || code != MPI_SUCCESS) break;  // an error ends a request too
    if (std::chrono::steady_clock::now() - start >= patience_) break;
    std::this_thread::yield();
  }
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
  patience_ = std::max(patience_ - taken, std::chrono::nanoseconds{0});
  if (through == 0) world_->Spoil();
  return through != 0;
}

// A message that MPI gave, unless its receive was cancelled before it came.
void MpiTransport::Account(const Flight& flight, const MPI_Status& status) {
  if (flight.source < 0) return;
  int cancelled = 0;
  MPI_Test_cancelled(&status, &cancelled);
  if (cancelled == 0) world_->CountReceived(flight.source);
}

// Whether MPI is through with it. `lends`: whose memory goes back now, into which what is still on
// its way of a dead rank's message would come. Open MPI cancels that in the middle as well.
bool MpiTransport::TakeBack(size_t index, const Transfer* lends) {
  MPI_Status status{};
  int code = MPI_SUCCESS;
  const bool through = Settle(1, &requests_[index], &status, code);
  if (code == MPI_ERR_IN_STATUS) code = status.MPI_ERROR;
  const bool failed = code != MPI_SUCCESS && !IsTooLong(code);
  if (through && !failed) Account(flights_[index], status);
  outlives_ = outlives_ && (!failed || IsDeath(code));
  const bool large = lends != nullptr && IsLarge(*lends);
  if (large && (failed || !through || (outlives_ && IsDead(world_->get(), lends->peer))))
    given_back_ = true;
  return through || failed;
}

// Nothing outlives the failure: MPI is not called any more, and keeps what it has. Open MPI gives
// up a message in the middle when its peer dies, but what is still on its way finds the request and
// the memory that it had.
void MpiTransport::Forsake() {
  if (!reductions_.empty()) world_->Forsake();
  for (Flight& flight : flights_) {
    if (flight.packed.data() == nullptr) world_->Forsake();
    if (flight.transfer != nullptr) Finish(*flight.transfer, failure_, 0);
    if (flight.packed.data() != nullptr) new Buffer(std::move(flight.packed));
  }
  flights_.clear();
  requests_.clear();
  for (PendingReduction* reduction : reductions_) reduction->Fail(failure_);
}

// A receive can be cancelled in MPI unless its message is already arriving; a send cannot. What
// lies in a packed buffer is left with MPI, which keeps the buffer; what lies in the user's memory
// must end.
void MpiTransport::Withdraw(size_t index, const Status& why) {
  Flight& flight = flights_[index];
  Transfer& transfer = *flight.transfer;
  // A call of MPI that failed may have ended it; taking back nothing is an error that ends the job.
  const bool open = requests_[index] != MPI_REQUEST_NULL;
  if (open && transfer.direction == Transfer::Direction::kReceive) MPI_Cancel(&requests_[index]);
  flight.transfer = nullptr;
  if (flight.packed.data() == nullptr) {
    if (!TakeBack(index, &transfer)) {
      std::fprintf(stderr,
                   "horon: mpi: a message of %lld bytes with rank %d could not be taken back; MPI "
                   "keeps it\n",
                   static_cast<long long>(TotalBytes(transfer.spans)), transfer.peer);
    }
    if (flight.layout != MPI_DATATYPE_NULL) MPI_Type_free(&flight.layout);
    Remove(index);
  }
  Finish(transfer, why, 0);
}

void MpiTransport::Cancel(Transfer& transfer) {
  const auto index = static_cast<size_t>(transfer.scratch[0]);
  if (abandoned_) {
    Orphan(flights_[index], requests_[index], Status::Aborted("cancelled"));
  } else {
    Withdraw(index, Status::Aborted("cancelled"));
  }
}

// --- after a death

// The message is nobody's any more, but MPI still has it, and the memory.
void MpiTransport::Orphan(Flight& flight, MPI_Request& request, const Status& why) {
  const bool receive = flight.transfer->direction == Transfer::Direction::kReceive;
  if (receive && request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  Finish(*std::exchange(flight.transfer, nullptr), why, 0);
}

// Whether MPI has nothing any more that does not outlive the job. What is packed may stay with it.
bool MpiTransport::TakeBackAll() {
  if (torn_ || given_back_ || !reductions_.empty()) return false;
  for (size_t i = flights_.size(); i-- > 0;) {  // Remove fills the gap with one that was looked at
    Flight& flight = flights_[i];
    if (flight.transfer == nullptr || flight.transfer->outlives) continue;
    const bool packed = flight.packed.data() != nullptr;
    Transfer& transfer = *flight.transfer;
    Orphan(flight, requests_[i], failure_);
    int through = 0;
    MPI_Status status{};
    const int code = MPI_Test(&requests_[i], &through, &status);
    if (code == MPI_SUCCESS && through == 0) {
      if (!packed) return false;
      continue;
    }
    if (code != MPI_SUCCESS && !IsTooLong(code)) {
      NoteTorn(flight, transfer);
      outlives_ = outlives_ && IsDeath(code);
    }
    Complete(flight, status, code);
    Remove(i);
  }
  return !torn_ && outlives_;
}

// An empty message says to all that this rank listened to that nothing follows. It comes behind
// what was on its way to them, so that is let go, too: while its memory is lent, and that of all
// that others may still send.
void MpiTransport::TellPeers() {
  std::vector<MPI_Request> told;
  for (size_t i = 0; i < listened_.size(); ++i) {
    const int peer = static_cast<int>(i);
    if (listened_[i] == 0 || !Reaches(peer) || IsDead(world_->get(), peer)) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(nullptr, 0, MPI_BYTE, peer, static_cast<int>(listened_[i]),
                               world_->get(), &request);
    if (code == MPI_SUCCESS) told.push_back(request);
  }
  for (size_t i = 0; i < flights_.size(); ++i) {
    const Transfer* const transfer = flights_[i].transfer;
    if (transfer != nullptr && transfer->outlives && flights_[i].source < 0)
      told.push_back(std::exchange(requests_[i], MPI_REQUEST_NULL));
  }
  for (MPI_Request& request : told) {
    int code = MPI_SUCCESS;
    if (!given_back_) Settle(1, &request, MPI_STATUSES_IGNORE, code);
    if (code == MPI_SUCCESS && request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

void MpiTransport::Abandon() {
  world_->Spoil();
  if (failure_.ok()) failure_ = Status::Unavailable("the job has failed");
  if (!outlives_ || abandoned_ || !TakeBackAll()) {
    Leave();
    return;
  }
  abandoned_ = true;
  failure_ = Status::Ok();
}

void MpiTransport::Leave() {
  world_->Spoil();
  if (outlives_) TellPeers();
  outlives_ = false;
  if (failure_.ok()) failure_ = Status::Unavailable("the job has failed");
  Forsake();
}

}  // namespace horon
