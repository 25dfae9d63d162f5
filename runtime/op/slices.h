// Slices: the tensors of a bucket as one row of elements, cut into slices, several in flight.
//
// What is done with a slice is a Task of its own, under a tag of its own: so a link between nodes
// is busy both ways, and one slice is packed, or is inside its node, while others travel. A slice
// is packed into scratch, worked on there and unpacked; one that lies in one tensor is not packed,
// unless it is prescaled. For elementwise reductions over messages, where no lane streams them (the
// executor), and for hierarchical ops. Holder of the baton only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/phases.h"
#include "runtime/op/op.h"
#include "runtime/transport/spans.h"

namespace horon {

class Slices final : public Waitable {
 public:
  // With `count` elements; input and output may be the same.
  using Step = std::function<Task(Communicator& comm, const std::byte* input, std::byte* output,
                                  int64_t count)>;
  struct Plan {
    int64_t bytes = 0;      // of a slice; 0: the whole row is one, on the bucket's own tag
    double prescale = 1.0;  // before the step
    // Enough for the way there and back and for a peer that looks late. Not more: what has been
    // handed over goes to all peers at whatever rate each gets, and links are idle while the last
    // one ends. Four slices at least are under way.
    int64_t bytes_in_flight = 4 << 20;
    int64_t done = 0;  // bytes at the beginning of the row that are left out
  };

  // The tensors `which` (indices of stage.segments()), which have their outputs. `stage` outlives
  // this, and `phases`, unless null.
  Slices(Stage& stage, const std::vector<size_t>& which, Plan plan, Step step,
         Phases* phases = nullptr);

  // Of an elementwise reduction of all tensors; one slice where the transport reduces blocks
  // itself. A tensor of the user's is written to only when all ranks have started the bucket: their
  // parts of it have come. `slice_bytes` 0: DefaultBytes. `done`: as in Plan.
  Slices(Stage& stage, Reduction reduction, int64_t slice_bytes = 0, Phases* phases = nullptr,
         int64_t done = 0);

  // Of a reduction's slice.
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
  Plan plan_;
  Step step_;
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
