// A runtime tunes itself: on rank 0, whose decisions tell the others.
#include "runtime/core/runtime.h"
#include "runtime/op/slices.h"

namespace horon {

Status Runtime::StartConfiguredTuning() {
  const Topology& topology = fabric_.topology;
  if (rank_ != 0 || topology.size() == 1) return Status::Ok();
  const bool one_node = topology.nodes() == 1;
  TuningLimits limits;
  limits.chunk_bytes = one_node && segment_ ? segment_->shape().chunk_bytes : 0;
  limits.slice_bytes = one_node ? 0 : Slices::DefaultBytes(topology.nodes());
  limits.may_flatten = !one_node && topology.nodes() < topology.size() && !config_.deterministic;
  HORON_ASSIGN(auto tuner, Autotuner::Make(config_, limits, *counters_));
  if (tuner == nullptr) return Status::Ok();
  {
    MutexLock lock(orders_mutex_);
    new_tuner_ = std::move(tuner);
  }
  ordering_.store(true, std::memory_order_release);
  bell_->Ring();
  return Status::Ok();
}

// The batch is about to start. One that is left out has waited for a late rank, which says nothing.
void Runtime::Tune(const Batch& batch) {
  if (!batch.entries.empty() && batch.entries[0].kept != Kept::kNot) return;
  tuner_->Saw(batch.tuning, batch.entries, Autotuner::Clock::now());
  negotiator_.Tune(tuner_->wanted());
}

}  // namespace horon
