#include "runtime/transport/mpi_transport.h"

#include <algorithm>
#include <cstring>

#include "runtime/transport/mpi_calls.h"
#include "runtime/transport/spans.h"

namespace horon {
namespace {

// Below this, copying through a buffer is cheaper than building a datatype.
constexpr int64_t kPackBytes = 256 << 10;
// What is not longer comes in one piece, or not at all.
constexpr int64_t kWholeBytes = 1 << 10;
// All that cancelling may wait for, over the life of a transport: it happens when a job fails or
// ends.
constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds{2};

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<MpiComm> world, Counters& counters, bool reduces_blocks,
                           int64_t piece, bool reads_gpus)
    : world_(std::move(world)),
      reduces_blocks_(reduces_blocks),
      piece_(piece),
      reads_gpus_(reads_gpus),
      pool_(std::make_shared<Pool>(MakeHostMemory())),
      messages_(counters["mpi.messages"]),
      bytes_(counters["mpi.bytes"]),
      collectives_(counters["mpi.collectives"]),
      patience_(kPatience),
      outlives_(horon::OutlivesRanks()),
      dead_(static_cast<size_t>(world_->size())),
      listened_(dead_.size()) {}

MpiTransport::~MpiTransport() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised != 0) return;
  if (abandoned_ || !failure_.ok()) {
    world_->Spoil();
    Forsake();
  }
  while (!flights_.empty()) {
    const size_t last = flights_.size() - 1;
    if (flights_[last].transfer != nullptr) {
      Withdraw(last, Status::Aborted("the transport is closed"));
      continue;  // what was packed stays for the next turn
    }
    // MPI may still read or write the buffer, so it is never given back unless MPI is through.
    if (!TakeBack(last)) new Buffer(std::move(flights_[last].packed));
    Remove(last);
  }
}

Status MpiTransport::Lost(int peer, const std::string& why) {
  return Status::Unavailable("rank " + std::to_string(peer) +
                             " cannot be reached over MPI any more: " + why);
}

// A call that concerns this rank has failed. After Abandon its death is nobody else's business.
Status MpiTransport::Miss(int peer, int code) {
  if (!IsDeath(code)) outlives_ = false;
  return Miss(peer, DescribeMpiError(code));
}

Status MpiTransport::Miss(int peer, const std::string& why) {
  dead_[static_cast<size_t>(peer)] = true;
  Status lost = Lost(peer, why);
  if (failure_.ok() && !(outlives_ && abandoned_)) failure_ = lost;
  return lost;
}

// Of a message that ended in an error: what of it is still on its way finds the memory that it had.
void MpiTransport::NoteTorn(const Flight& flight, const Transfer& transfer) {
  torn_ = torn_ || (flight.packed.data() == nullptr && IsLarge(transfer));
}

// Such a message comes in pieces, into memory that does not stay.
bool MpiTransport::IsLarge(const Transfer& transfer) {
  return !transfer.outlives && TotalBytes(transfer.spans) > kWholeBytes;
}

void MpiTransport::Finish(Transfer& transfer, Status status, int64_t bytes) {
  transfer.status = std::move(status);
  transfer.bytes = bytes;
  transfer.done = true;
  transfer.transport = nullptr;
}

// --- posting

Result<MpiTransport::Payload> MpiTransport::Prepare(Flight& flight) {
  const RecycledVector<Span>& spans = flight.transfer->spans;
  const int64_t total = TotalBytes(spans);
  const Span* only = nullptr;
  int runs = 0;
  for (const Span& span : spans) {
    if (span.bytes == 0) continue;
    only = &span;
    ++runs;
  }
  if (runs == 0) return Payload{};
  if (runs == 1 && total <= piece_) return Payload{only->data, static_cast<int>(total), MPI_BYTE};
  return total <= kPackBytes ? Pack(flight, total) : List(flight);
}

Result<MpiTransport::Payload> MpiTransport::Pack(Flight& flight, int64_t total) {
  HORON_ASSIGN(flight.packed, pool_->Take(total));
  if (flight.transfer->direction == Transfer::Direction::kSend) {
    std::byte* to = flight.packed.data();
    for (const Span& span : flight.transfer->spans) {
      if (span.bytes == 0) continue;
      std::memcpy(to, span.data, static_cast<size_t>(span.bytes));
      to += span.bytes;
    }
  }
  return Payload{flight.packed.data(), static_cast<int>(total), MPI_BYTE};
}

Result<MpiTransport::Payload> MpiTransport::List(Flight& flight) {
  RecycledVector<int> lengths;
  RecycledVector<MPI_Aint> places;
  for (const Span& span : flight.transfer->spans) {
    for (int64_t at = 0; at < span.bytes; at += piece_) {
      MPI_Aint place = 0;
      MPI_Get_address(span.data + at, &place);
      places.push_back(place);
      lengths.push_back(static_cast<int>(std::min(piece_, span.bytes - at)));
    }
  }
  int code = MPI_Type_create_hindexed(static_cast<int>(places.size()), lengths.data(),
                                      places.data(), MPI_BYTE, &flight.layout);
  if (code == MPI_SUCCESS) code = MPI_Type_commit(&flight.layout);
  if (code != MPI_SUCCESS)
    return Status::Internal("MPI cannot describe a message: " + DescribeMpiError(code));
  return Payload{MPI_BOTTOM, 1, flight.layout};
}

Status MpiTransport::Post(Transfer& transfer) {
  const bool send = transfer.direction == Transfer::Direction::kSend;
  if (!send && transfer.outlives) listened_[static_cast<size_t>(transfer.peer)] = transfer.tag;
  if (!failure_.ok()) return failure_;
  // Open MPI's MPI_Isend does not look, and crashes over TCP (5.0.11): the connections are gone.
  if (send && IsDead(world_->get(), transfer.peer)) return Miss(transfer.peer, "it is dead");
  Flight flight;
  flight.transfer = &transfer;
  flight.source = send ? -1 : transfer.peer;
  HORON_ASSIGN(const Payload payload, Prepare(flight));
  const int tag = static_cast<int>(transfer.tag);
  MPI_Request request = MPI_REQUEST_NULL;
  int code = send ? MPI_Isend(payload.data, payload.count, payload.type, transfer.peer, tag,
                              world_->get(), &request)
                  : MPI_Irecv(payload.data, payload.count, payload.type, transfer.peer, tag,
                              world_->get(), &request);
  // A small message usually is through at once; then its poster need not stop for it.
  int through = 0;
  MPI_Status status;
  if (code == MPI_SUCCESS && send) code = MPI_Test(&request, &through, &status);
  if (code != MPI_SUCCESS) {
    if (flight.layout != MPI_DATATYPE_NULL) MPI_Type_free(&flight.layout);
    return Miss(transfer.peer, code);
  }
  if (send) {
    world_->CountSent(transfer.peer);
    messages_.Add();
    bytes_.Add(TotalBytes(transfer.spans));
  }
  transfer.done = false;
  transfer.status = Status::Ok();
  transfer.bytes = 0;
  transfer.transport = this;
  if (through != 0) {
    Complete(flight, status, MPI_SUCCESS);
    return Status::Ok();
  }
  transfer.scratch[0] = flights_.size();
  flights_.push_back(std::move(flight));
  requests_.push_back(request);
  return Status::Ok();
}

// --- progress

Result<bool> MpiTransport::Progress() {
  HORON_TRY(failure_);
  bool moved = PollReductions();
  if (!requests_.empty()) {
    finished_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  finished_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
      failure_ = Status::Unavailable("MPI has failed: " + DescribeMpiError(code));
      outlives_ = false;
      count = 0;
    }
    for (int i = 0; i < count; ++i) {
      MPI_Status& status = statuses_[static_cast<size_t>(i)];
      Complete(flights_[static_cast<size_t>(finished_[static_cast<size_t>(i)])], status,
               code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS);
    }
    // Highest index first: Remove fills the gap with the last one.
    std::sort(finished_.begin(), finished_.begin() + count, std::greater<int>());
    for (int i = 0; i < count; ++i) Remove(static_cast<size_t>(finished_[static_cast<size_t>(i)]));
    moved = moved || count > 0;
  }
  if (failure_.ok()) return moved;
  if (!outlives_) Forsake();
  return failure_;
}

int MpiTransport::Sender(Tag tag) {
  int there = 0;
  MPI_Status status;
  if (!failure_.ok()) return -1;
  const int code =
      MPI_Iprobe(MPI_ANY_SOURCE, static_cast<int>(tag), world_->get(), &there, &status);
  return code == MPI_SUCCESS && there != 0 ? status.MPI_SOURCE : -1;
}

void MpiTransport::Complete(Flight& flight, MPI_Status& status, int code) {
  Transfer* transfer = flight.transfer;
  Account(flight, status);
  const bool listed = flight.layout != MPI_DATATYPE_NULL;
  if (transfer != nullptr && code == MPI_SUCCESS) {
    int64_t bytes = TotalBytes(transfer->spans);
    if (transfer->direction == Transfer::Direction::kReceive) {
      MPI_Count count = 0;  // a message may be shorter than the spans
      MPI_Get_elements_x(&status, listed ? flight.layout : MPI_BYTE, &count);
      bytes = count;
      SpanCursor at;
      const std::byte* from = flight.packed.data();
      if (from != nullptr) {
        ForNext(transfer->spans, at, bytes, [&](std::byte* to, int64_t n) {
          std::memcpy(to, from, static_cast<size_t>(n));
          from += n;
        });
      }
    }
    Finish(*transfer, Status::Ok(), bytes);
  } else if (transfer != nullptr && IsTooLong(code)) {
    Finish(*transfer,
           Status::Internal("rank " + std::to_string(transfer->peer) + " sent more than the " +
                            std::to_string(TotalBytes(transfer->spans)) +
                            " bytes that were expected"),
           0);
  } else if (transfer != nullptr) {
    NoteTorn(flight, *transfer);
    Finish(*transfer, Miss(transfer->peer, code), 0);
  }
  if (IsDeath(code) && flight.packed.data() != nullptr) new Buffer(std::move(flight.packed));
  if (listed) MPI_Type_free(&flight.layout);
  flight = Flight();
}

void MpiTransport::Remove(size_t index) {
  const size_t last = flights_.size() - 1;
  if (index != last) {
    flights_[index] = std::move(flights_[last]);
    requests_[index] = requests_[last];
    if (flights_[index].transfer != nullptr) flights_[index].transfer->scratch[0] = index;
  }
  flights_.pop_back();
  requests_.pop_back();
}

}  // namespace horon
