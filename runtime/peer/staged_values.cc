#include "runtime/peer/staged_values.h"

#include <utility>

namespace horon {

StagedValues::StagedValues(std::shared_ptr<Gpu> gpu, std::byte* tensor, int64_t bytes)
    : gpu_(std::move(gpu)),
      tensor_(tensor),
      bytes_(bytes),
      pinned_(std::make_shared<Pool>(gpu_->MakePinnedMemory())) {}

Result<std::shared_ptr<StagedValues>> StagedValues::Make(std::shared_ptr<Gpu> gpu,
                                                         std::byte* tensor, int64_t bytes) {
  std::shared_ptr<StagedValues> made(new StagedValues(std::move(gpu), tensor, bytes));
  HORON_ASSIGN(made->copy_, made->pinned_->Take(bytes));
  HORON_ASSIGN(made->stream_, made->gpu_->MakeStream(PairKernels::kFused));
  return made;
}

Result<SharedEvent> StagedValues::TakeIn(Event* ready, const std::byte* from) {
  if (ready != nullptr) HORON_TRY(ready->HoldBack(stream_->native()));
  return Copy(copy_.data(), from != nullptr ? from : tensor_);
}

Result<SharedEvent> StagedValues::GiveBack() { return Copy(tensor_, copy_.data()); }

Result<std::byte*> StagedValues::Output() {
  if (output_.bytes() < bytes_) {
    HORON_ASSIGN(output_, pinned_->Take(bytes_));
  }
  return output_.data();
}

Result<SharedEvent> StagedValues::SendOutput(std::byte* to) { return Copy(to, output_.data()); }

Result<SharedEvent> StagedValues::Copy(std::byte* to, const std::byte* from) {
  if (bytes_ > 0) HORON_TRY(stream_->Copy(to, from, bytes_));
  return stream_->Record();
}

}  // namespace horon
