#include "runtime/base/time_use.h"

#include "runtime/base/phases.h"  // SteadyNow

namespace horon {

TimeUse::TimeUse(Counters& counters)
    : parts_{{{&counters["explain.ns.program"], &counters["explain.ns.hidden_negotiation"],
               &counters["explain.ns.hidden_others"], &counters["explain.ns.hidden_moving"]},
              {&counters["explain.ns.queue"], &counters["explain.ns.negotiation"],
               &counters["explain.ns.others"], &counters["explain.ns.moving"]}}},
      copying_(counters["explain.ns.copying"]),
      reducing_(counters["explain.ns.reducing"]),
      waits_(counters["explain.waits"]),
      buckets_(counters["explain.buckets"]),
      tensors_(counters["explain.tensors"]),
      bytes_(counters["explain.bytes"]),
      locked_(counters["explain.locked"]),
      distinct_(counters["explain.distinct"]),
      distinct_bytes_(counters["explain.distinct_bytes"]) {}

void TimeUse::Charge() {
  const int64_t now = SteadyNow();
  if (measuring_) parts_[waiting_ > 0][static_cast<size_t>(stage_)]->Add(now - since_);
  since_ = now;
}

void TimeUse::See(Stage stage) {
  if (stage == seen_) return;
  seen_ = stage;
  MutexLock lock(mutex_);
  Charge();
  stage_ = stage;
}

void TimeUse::Begin() {
  if (begun_) return;
  begun_ = true;
  MutexLock lock(mutex_);
  Charge();
  measuring_ = true;
}

void TimeUse::Finished(uint64_t runs, int64_t bytes, bool locked) {
  if (runs < 2) return;
  tensors_.Add();
  bytes_.Add(bytes);
  if (locked) locked_.Add();
  if (runs > 2) return;
  distinct_.Add();
  distinct_bytes_.Add(bytes);
}

void TimeUse::FinishedBucket(int64_t copying, int64_t reducing) {
  if (!begun_) return;
  buckets_.Add();
  copying_.Add(copying);
  reducing_.Add(reducing);
}

void TimeUse::ChangeWaiting(int by) {
  MutexLock lock(mutex_);
  const bool changes = waiting_ == 0 || waiting_ + by == 0;
  if (changes) Charge();
  waiting_ += by;
  if (measuring_ && by > 0) waits_.Add();
}

}  // namespace horon
