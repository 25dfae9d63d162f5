// A user's thread orders a timeline: through rank 0's negotiator, which tells all ranks.
#include "runtime/base/absolute_path.h"
#include "runtime/base/look.h"
#include "runtime/core/runtime.h"

namespace horon {
namespace {

// A negotiation, and for an end what the disk takes.
constexpr std::chrono::seconds kWriterPatience{30};

int64_t MicrosecondsSince1970() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status Runtime::StartTimeline(TimelineOrder order) {
  if (rank_ != 0) return Status::Ok();
  order.path = AbsolutePath(order.path);
  order.begin = true;
  order.epoch = SteadyNow();
  order.epoch_us = MicrosecondsSince1970();
  order.id = std::to_string(order.epoch_us) + "-" + std::to_string(order.epoch);
  HORON_TRY(TimelineFile::Create(order.path, order.id).status());
  return OrderTimeline(std::move(order));
}

Status Runtime::StartConfiguredTimeline() {
  if (config_.timeline.empty() || config_.timeline == "DYNAMIC") return Status::Ok();
  TimelineOrder order;
  order.path = config_.timeline;
  order.mark_cycles = config_.timeline_mark_cycles;
  order.first_step = config_.timeline_first_step;
  order.end_step = config_.timeline_end_step;
  const Status started = StartTimeline(std::move(order));
  if (started.code() != Code::kInvalidArgument) return started;
  return Status::InvalidArgument("HORON_TIMELINE: " + started.message());
}

Status Runtime::StopTimeline() { return rank_ == 0 ? OrderTimeline({}) : Status::Ok(); }

Status Runtime::OrderTimeline(TimelineOrder order) {
  uint64_t number;
  {
    MutexLock lock(orders_mutex_);
    number = order.number = ++ordered_;
    orders_.push_back(std::move(order));
  }
  ordering_.store(true, std::memory_order_release);
  bell_->Ring();
  const auto until = std::chrono::steady_clock::now() + kWriterPatience;
  for (std::chrono::nanoseconds left = kWriterPatience; left.count() > 0;
       left = until - std::chrono::steady_clock::now()) {
    using std::chrono::milliseconds;
    if (timeline_.Await(number, std::chrono::ceil<milliseconds>(UntilLook(left))))
      return Status::Ok();
    HORON_TRY(GoOn());
  }
  return Status::Unavailable(
      "the timeline did not start or stop within 30 s: the runtime has "
      "failed, or its disk is slow");
}

// Holder of the baton.
void Runtime::PassOrders() {
  MutexLock lock(orders_mutex_);
  negotiator_.Order(std::exchange(orders_, {}));
  if (!new_tuner_) return;
  tuner_ = std::move(new_tuner_);
  negotiator_.Tune(tuner_->wanted());
}

}  // namespace horon
