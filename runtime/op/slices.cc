#include "runtime/op/slices.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/base/fault.h"

namespace horon {
namespace {

// Of a slice: what each node sends of it should be large beside what a message costs, and the first
// and last slices small beside the bucket, because they leave one direction of the link idle.
constexpr int64_t kSliceBytes = 1 << 20, kSliceBytesPerNode = 64 << 10;
constexpr int64_t kLeastInFlight = 4, kMostInFlight = 16;
static_assert(kMostInFlight <= Communicator::kPlaces);

size_t Slots(int64_t bytes_in_flight, int64_t slice_bytes) {
  return static_cast<size_t>(
      std::clamp(bytes_in_flight / slice_bytes, kLeastInFlight, kMostInFlight));
}

std::vector<size_t> AllOf(Stage& stage) {
  std::vector<size_t> all(stage.segments().size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

Slices::Plan PlanOf(Stage& stage, const Reduction& reduction, int64_t slice_bytes, int64_t done) {
  const Communicator& comm = stage.comm();
  Slices::Plan plan;
  plan.done = done;
  plan.prescale = stage.prescale();
  if (ReducesWhole(comm, reduction)) return plan;
  const auto nodes = static_cast<int64_t>(comm.nodes().size());
  plan.bytes = slice_bytes > 0 ? slice_bytes : Slices::DefaultBytes(nodes);
  return plan;
}

}  // namespace

int64_t Slices::DefaultBytes(int64_t nodes) {
  return std::max(kSliceBytes, nodes * kSliceBytesPerNode);
}

Slices::Slices(Stage& stage, const std::vector<size_t>& which, Plan plan, Step step,
               Phases* phases)
    : stage_(stage),
      plan_(plan),
      step_(std::move(step)),
      phases_(phases),
      element_(SizeOf(stage.dtype())) {
  for (const size_t i : which) {
    const Segment& s = stage.segments()[i];
    // An input is only read; Span has one type for both directions.
    inputs_.push_back({const_cast<std::byte*>(s.input), s.count * element_});
    outputs_.push_back({s.output, s.count * element_});
    left_ += s.count * element_;
  }
  left_ -= plan.done;
  ForNext(inputs_, next_input_, plan.done, [](std::byte*, int64_t) {});
  ForNext(outputs_, next_output_, plan.done, [](std::byte*, int64_t) {});
  const bool whole = plan.bytes == 0;
  slice_ = whole ? left_ : std::max(plan.bytes / element_ * element_, element_);
  slots_.resize(whole ? 1 : Slots(plan.bytes_in_flight, slice_));
  if (phases_ == nullptr) return;
  phases_->Begin();
  phases_->Met();  // they have agreed, or passed the gate of a locked schedule
}

Slices::Slices(Stage& stage, Reduction reduction, int64_t slice_bytes, Phases* phases,
               int64_t done)
    : Slices(
          stage, AllOf(stage), PlanOf(stage, reduction, slice_bytes, done),
          [reduction](Communicator& comm, const std::byte* input, std::byte* output,
                      int64_t count) { return Allreduce(comm, input, output, count, reduction); },
          phases) {}

bool Slices::Ready() {
  bool moved = false;
  for (size_t slot = 0; slot < slots_.size() && !done(); ++slot) moved = Advance(slot) || moved;
  return moved || done();
}

// Slice k is slot k % slots' on every rank: its messages have that slot's tag.
bool Slices::Advance(size_t slot) {
  Slice& slice = slots_[slot];
  if (slice.task == nullptr) {
    if (left_ == 0 || slot != turn_) return false;
    turn_ = (turn_ + 1) % slots_.size();
    Begin(slice, slots_.size() == 1 ? stage_.comm() : stage_.comm().At(static_cast<int>(slot)));
  }
  const bool moved = slice.task->Advance();
  if (!slice.task->done()) return moved;
  if (status_.ok()) status_ = slice.task->status();
  slice.task.reset();
  --running_;
  return true;
}

void Slices::Begin(Slice& slice, Communicator comm) {
  slice.bytes = std::min(slice_, left_);
  slice.inputs.clear();
  slice.outputs.clear();
  ForNext(inputs_, next_input_, slice.bytes,
          [&](std::byte* data, int64_t n) { slice.inputs.push_back({data, n}); });
  ForNext(outputs_, next_output_, slice.bytes,
          [&](std::byte* data, int64_t n) { slice.outputs.push_back({data, n}); });
  left_ -= slice.bytes;
  ++running_;
  slice.task = std::make_unique<RootTask>(Run(slice, std::move(comm)));
}

Task Slices::Run(Slice& slice, Communicator comm) {
  // Of one tensor: nothing is gained by packing it. Prescaling goes with packing.
  const bool lone = slice.inputs.size() == 1 && slice.outputs.size() == 1;
  if (!lone || plan_.prescale != 1.0) co_return co_await RunPacked(slice, comm);
  FaultPoint(FaultPhase::kCopyIn);
  if (phases_ != nullptr) phases_->Sent();
  Task step = step_(comm, slice.inputs[0].data, slice.outputs[0].data, slice.bytes / element_);
  HORON_CO_TRY(co_await step);
  FaultPoint(FaultPhase::kCopyOut);
  if (phases_ != nullptr) phases_->Arrived();
  co_return Status::Ok();
}

void Slices::Pack(Slice& slice) {
  FaultPoint(FaultPhase::kCopyIn);
  const PhaseTimer timer(phases_, &Phases::packing);
  std::byte* at = slice.scratch.data();
  for (const Span& from : slice.inputs) {
    ScaleInto(stage_.dtype(), plan_.prescale, from.data, at, from.bytes / element_);
    at += from.bytes;
  }
}

void Slices::Unpack(Slice& slice) {
  FaultPoint(FaultPhase::kCopyOut);
  const PhaseTimer timer(phases_, &Phases::unpacking);
  const std::byte* at = slice.scratch.data();
  for (const Span& to : slice.outputs) {
    std::memcpy(to.data, at, static_cast<size_t>(to.bytes));
    at += to.bytes;
  }
}

Task Slices::RunPacked(Slice& slice, Communicator& comm) {
  if (slice.scratch.bytes() < slice.bytes) {
    auto scratch = stage_.Scratch(slice.bytes);
    if (!scratch.ok()) co_return scratch.status();
    slice.scratch = std::move(scratch).value();
  }
  Pack(slice);
  if (phases_ != nullptr) phases_->Sent();
  std::byte* const block = slice.scratch.data();
  Task step = step_(comm, block, block, slice.bytes / element_);
  HORON_CO_TRY(co_await step);
  if (phases_ != nullptr) phases_->Arrived();
  Unpack(slice);
  co_return Status::Ok();
}

}  // namespace horon
