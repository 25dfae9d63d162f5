// GpuStage: what an op sees of a bucket whose tensors lie on GPUs, one of each rank. Some ranks, or
// all, reach each other by themselves (a group); what goes to the others travels as messages.
// Segments point into the device's memory: the host neither reads nor writes them, it enqueues.
// AllocateOutput and Scratch give memory of the device.
#pragma once

#include "runtime/op/op.h"
#include "runtime/transport/gpu_group.h"

namespace horon {

class GpuStage : public Stage {
 public:
  virtual Stream& stream() = 0;
  // The members of comm() that the group joins, this rank among them, ascending: all of them, or
  // those of this rank's node.
  virtual std::span<const int> near() const = 0;
  // Ranks in it are places in near(). Of one it copies.
  virtual GpuGroup& group() = 0;
  // For scratch: free once the device has done what was enqueued so far.
  virtual Status Retire(Buffer buffer) = 0;
  // Memory of the device that the process set's buckets use one after the other, so that there is
  // no more of it than the largest needs. The last call of a bucket counts.
  virtual Result<std::byte*> Block(int64_t bytes) = 0;
  // send[p] goes to rank p of comm(), recv[p] comes from it, in the device's memory; this rank's
  // own are empty, and all are memory of their own. Over the group where it reaches; else through
  // pinned memory in chunks, or by an MPI that reads the device's. It begins behind what the stream
  // has, which goes on behind it. Suspended only while messages travel. The near ranks make the
  // same calls in the same order, if only with nothing to send.
  virtual Task Exchange(std::vector<Span> send, std::vector<Span> recv) = 0;
};

}  // namespace horon
