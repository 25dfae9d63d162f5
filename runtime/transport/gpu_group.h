// GpuGroup: some ranks with a GPU each, whose collectives run on those GPUs: NCCL in production
// (nccl.h, in the CUDA plugin), one on host memory in tests (test/support/fake_gpu.h).
//
// All calls enqueue on a stream and return. Every rank of a group makes the same calls in the same
// order, and ranks that share several groups use them in the same order too. Holder of the baton.
// A failure is kUnavailable.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/device/memory.h"
#include "runtime/device/stream.h"

namespace horon {

// What the ranks of a new group have in common: made by one of them, told to the others.
struct GpuGroupId {
  std::array<std::byte, 128> bytes{};
};

// How what buckets are packed into is registered: not; by each rank for itself; where buckets are
// equally long on all ranks, by all of them together.
enum class MemoryRegistration : int32_t { kNone, kEach, kTogether };

// What a runtime wants of its groups. Equal on all ranks.
struct GpuGroupOptions {
  std::chrono::milliseconds timeout{600'000};  // for the ranks to meet, and for calls; 0: none
  int max_ctas = 0;                            // blocks a collective takes; 0: the network chooses
  MemoryRegistration registration = MemoryRegistration::kNone;
};

class GpuGroup {
 public:
  virtual ~GpuGroup() = default;  // begins to leave, if it is neither left nor aborted
  // Whether all ranks have come: nothing is enqueued before. Never blocks. kUnavailable when they
  // have not in time.
  virtual Result<bool> Ready() = 0;
  // What the network has noticed since. Never blocks.
  virtual Status Check() = 0;
  // Begins to end what is in flight, here, whatever the other ranks do. Never blocks. Afterwards
  // nothing is enqueued.
  virtual void Abort() = 0;
  // Begins to part from the other ranks, which is over once they are done with it, too. Never
  // blocks. Afterwards nothing is enqueued. Aborts where something has failed before.
  virtual void Leave() = 0;
  // Whether that is over, and what it was given may go. Never blocks.
  virtual bool gone() const = 0;
  // Whether a call is in it that was waited for in vain. Then it cannot be aborted, is never gone,
  // and what it was given must stay as it is: that call may come back.
  virtual bool stuck() const = 0;

  // Memory of GpuNetwork::MakeMemory, once all have come, in which collectives may work without
  // copies. Where one rank gives a collective such memory all do. Deregister: before it is freed,
  // once the device is done with it, unless the group goes first.
  virtual Status Register(const Span& memory) = 0;
  virtual Status Deregister(const std::byte* memory) = 0;
  // The same by all ranks together, of equally many bytes. Waits for the others; the memory stays
  // registered as long as the group lives. A collective is given it by all ranks, who begin it at
  // the same distance from the beginning. What it came to: kEach where the GPUs do not reach each
  // other's memory.
  virtual Result<MemoryRegistration> RegisterTogether(const Span& memory) = 0;

  // In place.
  virtual Status Allreduce(DataType dtype, ReduceKind kind, std::byte* block, int64_t count,
                           Stream& stream) = 0;
  // The block is a part of `count` elements for each rank; `out` may be this rank's part of it.
  virtual Status ReduceScatter(DataType dtype, ReduceKind kind, const std::byte* block,
                               std::byte* out, int64_t count, Stream& stream) = 0;
  // The other way round; `part` may lie at its place in the block.
  virtual Status Allgather(const std::byte* part, std::byte* block, int64_t bytes,
                           Stream& stream) = 0;
  virtual Status Broadcast(std::span<const Span> spans, int root, Stream& stream) = 0;
  // send[p] goes to rank p, recv[p] comes from it, this rank's own included; as many times as there
  // are ranks spans, one exchange after the other (a bucket's tensors) in one launch.
  virtual Status Exchange(std::span<const Span> send, std::span<const Span> recv,
                          Stream& stream) = 0;
  // Whether the reductions above take this dtype.
  virtual bool Reduces(DataType dtype) const = 0;
};

class GpuNetwork {
 public:
  virtual ~GpuNetwork() = default;
  virtual int version() const = 0;  // as NCCL counts: 22809 is 2.28.9
  virtual Result<GpuGroupId> MakeId() = 0;
  // This rank's end of a new group. Never blocks for the others; GpuGroup::Ready says when they
  // have come.
  virtual Result<std::unique_ptr<GpuGroup>> Connect(const GpuGroupId& id, int size, int rank,
                                                    Device device,
                                                    const GpuGroupOptions& options) = 0;
  // The most that groups can do.
  virtual MemoryRegistration registration() const = 0;
  // Of memory that groups register; null where they do not.
  virtual std::unique_ptr<Memory> MakeMemory(Device device) = 0;
};

}  // namespace horon
