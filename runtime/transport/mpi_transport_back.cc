// MpiTransport: taking back what MPI has been given.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "runtime/transport/mpi_transport.h"
#include "runtime/transport/spans.h"

namespace horon {

// Waits until MPI is through with the requests, within what is left of kPatience.
bool MpiTransport::Settle(int count, MPI_Request* requests, MPI_Status* statuses) {
  const auto start = std::chrono::steady_clock::now();
  int through = 0;
  while (true) {
    const int code = MPI_Testall(count, requests, &through, statuses);
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

bool MpiTransport::TakeBack(size_t index) {
  MPI_Status status;
  const bool through = Settle(1, &requests_[index], &status);
  if (through) Account(flights_[index], status);
  return through;
}

// After a failure MPI is not called any more, and keeps what it has. Open MPI gives up a message in
// the middle when its peer dies, but what is still on its way finds the request and the memory that
// it had.
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
    if (!TakeBack(index)) {
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
  Withdraw(static_cast<size_t>(transfer.scratch[0]), Status::Aborted("cancelled"));
}

void MpiTransport::Abandon() {
  if (failure_.ok()) failure_ = Status::Unavailable("the job has failed");
  world_->Spoil();
  Forsake();
}

}  // namespace horon
