// Transport: moves bytes between ranks. Nothing in it blocks.
//
// Post starts a transfer, Progress moves what can move, Cancel takes one back: that is all a
// transport must do; the collectives in collectives.h are built on it. A transport may run some
// collectives faster than the defaults (see `streams` and `reduces_blocks`).
//
// Only the holder of the baton calls any of this. Ranks are global ranks of the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/recycler.h"
#include "runtime/base/status.h"
#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/device/kernels.h"

namespace horon {

// Matches a receive with a send, together with the peer. Below 2^27 so that every MPI can carry it.
// Between one pair of ranks, messages of equal tag arrive in the order they were posted.
using Tag = uint32_t;
inline constexpr Tag kControlTag = 0;  // negotiation; buckets use the tags from 128 on
inline constexpr Tag kLetterTag = 97;  // core/letters.h

class Transport;

// One send or receive in flight. Lives in its poster's frame; destroying it cancels it.
// The spans' memory is lent until Ready().
class Transfer final : public Waitable {
 public:
  enum class Direction : uint8_t { kSend, kReceive };

  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() override { Cancel(); }

  void Cancel();
  bool Ready() override { return done; }

  // Set by the poster.
  Direction direction = Direction::kSend;
  int peer = -1;
  Tag tag = 0;
  RecycledVector<Span> spans;  // gathered for a send, scattered into for a receive
  // It goes on after Abandon, where the transport OutlivesRanks. Its memory stays as it is, also
  // when it was cancelled, until the transport is told to Leave.
  bool outlives = false;
  // Set by the transport.
  bool done = true;  // true also when never posted
  Status status;
  int64_t bytes = 0;               // moved; a receive may get a shorter message than its spans hold
  Transport* transport = nullptr;  // non-null while posted
  uint64_t scratch[4] = {};        // the transport's own
};

// co_await Finished(transfer) -> Status of the transfer
class Finished {
 public:
  explicit Finished(Transfer& transfer) : transfer_(transfer), until_(transfer) {}
  bool await_ready() { return transfer_.done; }
  void await_suspend(Task::Handle self) noexcept { until_.await_suspend(self); }
  Status await_resume() { return transfer_.status; }

 private:
  Transfer& transfer_;
  Until until_;
};

// What a transport that reduces contiguous blocks itself is asked to do (MPI_Iallreduce).
struct BlockReduction {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may be `input`
  int64_t count = 0;            // elements
  DataType dtype = DataType::kFloat32;
  ReduceKind kind = ReduceKind::kSum;
  std::vector<int> ranks;  // ascending global ranks of the group
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "shm", "mpi", "inproc", "self"
  // False too for a peer that the transport knows to be dead.
  virtual bool Reaches(int peer) const = 0;

  // Starts `transfer` (its poster's fields set). kUnavailable if the peer is gone.
  // A message longer than the receive's spans is an error on the receiver: kInternal.
  virtual Status Post(Transfer& transfer) = 0;
  // Moves what can move; finishes transfers. Returns whether anything moved. kUnavailable names a
  // lost peer and finishes every transfer in flight with that status, but such as may outlive it.
  virtual Result<bool> Progress() = 0;
  // A peer of whom a message of this tag has come that no receive was posted for; -1: of nobody, or
  // the transport cannot tell. For messages that nobody expects.
  virtual int Sender(Tag) { return -1; }
  // Afterwards the transport does not touch the transfer or its memory any more.
  virtual void Cancel(Transfer& transfer) = 0;

  // Wakes peers whose waking was put off. Called before the holder of the baton sleeps or goes.
  virtual void Flush() {}

  // The job has lost a rank: what is in flight need not end by itself any more. Everything is
  // cancelled after this, and no new transfer is posted, but as OutlivesRanks says.
  virtual void Abandon() {}
  // True: what `outlives` the job, or is posted after Abandon, to ranks that live, is moved by
  // Progress all the same. It may become false, above all in Abandon.
  virtual bool OutlivesRanks() const { return false; }
  // After Abandon: nothing is moved any more. Where the peers of transfers that outlive the job
  // cannot see that, they get an empty message of the same tag.
  virtual void Leave() {}

  // Zero: peers ring the doorbell, the runtime may sleep. Otherwise: while transfers are pending or
  // expected the sleeper must look again after at most this long (MPI has nothing that wakes).
  virtual std::chrono::microseconds poll_interval() const { return std::chrono::microseconds{0}; }

  // Whether the spans of a transfer may lie in a GPU's memory, in one piece each: the transport, or
  // the network, reads and writes it by itself.
  virtual bool reads_gpus() const { return false; }

  // A collective of the transport's own for a whole block. The calls of one group of ranks match by
  // their order, so whoever calls makes it the same on all of them.
  // Prepare comes before the group's first, on all its ranks, in an order that is the same for all
  // groups; it may block until they have all called it.
  virtual Status Prepare(const std::vector<int>&) { return Status::Ok(); }
  virtual bool ReducesBlocks(const BlockReduction&) const { return false; }
  virtual Task ReduceBlock(BlockReduction) { co_return Status::Unsupported("no block reduction"); }
};

inline void Transfer::Cancel() {
  if (transport != nullptr && !done) transport->Cancel(*this);
  transport = nullptr;
}

}  // namespace horon
