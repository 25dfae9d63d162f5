// GpuStage: what an op sees of a bucket whose tensors lie on GPUs, one of each rank, that reach
// each other by themselves. Segments point into the device's memory: the host neither reads nor
// writes them, it enqueues. AllocateOutput and Scratch give memory of the device.
#pragma once

#include "runtime/op/op.h"
#include "runtime/transport/gpu_group.h"

namespace horon {

class GpuStage : public Stage {
 public:
  virtual Stream& stream() = 0;
  virtual GpuGroup& group() = 0;  // ranks as in comm()
  // For scratch: free once the device has done what was enqueued so far.
  virtual Status Retire(Buffer buffer) = 0;
};

}  // namespace horon
