// Slices: an elementwise reduction of one bucket over messages, where no lane streams it.
//
// The tensors of the bucket are one row of elements, cut into slices. Each slice is packed into
// scratch, reduced as one block and unpacked; several are in flight, so that a link between nodes
// is busy both ways, and one slice is packed, or is inside its node, while others travel. A slice
// that lies in one tensor is not packed, unless it is prescaled. A tensor of the user's is written
// to only when all ranks have started the bucket: their parts of it have come.
//
// Where the transport reduces blocks itself the whole row is one slice. Holder of the baton only.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/phases.h"
#include "runtime/op/op.h"
#include "runtime/transport/spans.h"

namespace horon {

class Slices final : public Waitable {
 public:
  // The stage's segments have their outputs. `stage` outlives this, and `phases`, unless null.
  // `slice_bytes` 0: DefaultBytes.
  Slices(Stage& stage, Reduction reduction, int64_t slice_bytes = 0, Phases* phases = nullptr);

  // Of a slice.
  static int64_t DefaultBytes(int64_t nodes);

  // Moves what can move; whether anything did.
  bool Ready() override;
  bool done() const { return !status_.ok() || (left_ == 0 && running_ == 0); }
  const Status& status() const { return status_; }

 private:
  struct Slice {
    std::vector<Span> inputs, outputs;
    int64_t bytes = 0;
    Buffer scratch;  // declared first: the task is destroyed before it goes
    std::unique_ptr<RootTask> task;
  };

  bool Advance(size_t slot);
  void Begin(Slice& slice, Communicator comm);
  Task Run(Slice& slice, Communicator comm);
  Task RunPacked(Slice& slice, Communicator& comm);
  void Pack(Slice& slice);
  void Unpack(Slice& slice);

  Stage& stage_;
  Reduction reduction_;
  Phases* phases_;
  int64_t element_;
  std::vector<Span> inputs_, outputs_;  // the whole row
  SpanCursor next_input_, next_output_;
  int64_t left_ = 0, slice_ = 0;  // bytes not yet begun, and of a slice
  size_t turn_ = 0;               // the slot that begins next
  int running_ = 0;
  Status status_;
  std::vector<Slice> slots_;
};

}  // namespace horon
