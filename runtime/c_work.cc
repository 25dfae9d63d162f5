#include "runtime/c_work.h"

#include "runtime/c_error.h"

namespace horon {
namespace {

const Output* OutputOf(const horon_work* work, int index) {
  if (work == nullptr || !work->done() || !work->status().ok()) return nullptr;
  const auto outputs = work->outputs();
  return index >= 0 && index < static_cast<int>(outputs.size())
             ? &outputs[static_cast<size_t>(index)]
             : nullptr;
}

}  // namespace

horon_work* Handle(const std::shared_ptr<Work>& work) {
  auto handle = std::static_pointer_cast<horon_work>(work);
  horon_work* const plain = handle.get();
  plain->self = std::move(handle);
  return plain;
}

}  // namespace horon

using namespace horon;  // NOLINT: the functions below are C's

extern "C" {

int horon_work_peek(const horon_work* work) { return work->done() ? 1 : 0; }

int horon_work_hold_back(const horon_work* work, void* stream) {
  return Guard([&] { return work->HoldBack(stream); });
}
int horon_work_settled(const horon_work* work) {
  const Result<bool> settled = work->Settled();
  return !settled.ok() || settled.value() ? 1 : 0;  // a lost device does nothing any more
}

const char* horon_work_message(const horon_work* work) {
  return work->done() ? work->status().message().c_str() : "";
}
void horon_work_retain(horon_work* work) {
  work->references.fetch_add(1, std::memory_order_relaxed);
}

int horon_work_output_ndim(const horon_work* work, int index) {
  const Output* output = OutputOf(work, index);
  return output != nullptr ? static_cast<int>(output->shape().size()) : -1;
}
const int64_t* horon_work_output_shape(const horon_work* work, int index) {
  const Output* output = OutputOf(work, index);
  return output != nullptr ? output->shape().data() : nullptr;
}
void* horon_work_output(const horon_work* work, int index) {
  const Output* output = OutputOf(work, index);
  return output != nullptr ? output->data : nullptr;
}
const int64_t* horon_work_received_splits(const horon_work* work, int index, int* count) {
  const Output* output = OutputOf(work, index);
  const bool some = output != nullptr && !output->received_splits.empty();
  *count = some ? static_cast<int>(output->received_splits.size()) : 0;
  return some ? output->received_splits.data() : nullptr;
}

}  // extern "C"
