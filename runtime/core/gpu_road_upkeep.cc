// What a GpuRoad does between buckets: its blocks of memory, what the device is done with, and
// whether it gets on.
#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/seconds.h"
#include "runtime/core/gpu_road.h"

namespace horon {
namespace {

// How often the device is asked whether it has ended a collective.
constexpr std::chrono::milliseconds kWatchEvery{10};
constexpr std::chrono::seconds kMostFarewell{30};

}  // namespace

// As large as the threshold at once, but for few bytes: to free what is outgrown would be to wait
// for the device, so it stays in its pool, and is less than an eighth of that. (More where the
// autotuner raises the threshold, or a bucket with its padding needs more than that.)
Status GpuRoad::Reserve(const GpuBucket& bucket, Share& share, int64_t bytes) {
  if (share.fusion.bytes() >= bytes) return Status::Ok();
  if (bytes > bucket.fusion_bytes() / 16) bytes = std::max(bytes, bucket.fusion_bytes());
  const bool registers = share.registers && share.group;
  if (!registers) {
    HORON_TRY(Retire(*share.stream, std::move(share.fusion)));
    HORON_ASSIGN(share.fusion, device_pool_->Take(bytes));
    return Status::Ok();
  }
  if (share.fusion.data() != nullptr) {
    HORON_ASSIGN(SharedEvent done, share.stream->Record());
    share.outgrown.emplace_back(std::move(done), std::move(share.fusion));
  }
  HORON_ASSIGN(share.fusion, registered_pool_->Take(bytes));
  return share.group->Register({share.fusion.data(), share.fusion.bytes()});
}

Status GpuRoad::SweepOutgrown(Share& share) {
  while (!share.outgrown.empty()) {
    HORON_ASSIGN(const bool done, share.outgrown.front().first->Done());
    if (!done) break;
    HORON_TRY(share.group->Deregister(share.outgrown.front().second.data()));
    share.outgrown.pop_front();
  }
  return Status::Ok();
}

// Back to its pool once the stream has done what was enqueued so far.
Status GpuRoad::Retire(Stream& stream, Buffer buffer) {
  if (buffer.data() == nullptr) return Status::Ok();
  HORON_ASSIGN(SharedEvent event, stream.Record());
  returns_->Add({std::move(event)}, std::move(buffer));
  return Status::Ok();
}

Status GpuRoad::Progress() {
  if (!gpu_) return Status::Ok();
  returns_->Sweep();
  for (auto& [set, share] : shares_) {
    if (share.group) HORON_TRY(share.group->Check());
    HORON_TRY(SweepOutgrown(share));
    if (share.direct) HORON_TRY(gpu_->Attach());
  }
  return WatchGroups();
}

// A rank that is stuck, or a network that is gone, without anybody noticing: the device waits.
// Buckets end in order, so the time is that since the one before the oldest ended.
Status GpuRoad::WatchGroups() {
  const auto limit = gpus_->choices().groups.timeout;
  if (limit.count() == 0 || !last_group_) return Status::Ok();
  const auto now = std::chrono::steady_clock::now();
  if (now - watched_at_ < kWatchEvery) return Status::Ok();
  watched_at_ = now;
  if (watched_) {
    HORON_ASSIGN(const bool ended, watched_->Done());
    if (!ended && now - watched_since_ > limit)
      return Status::Unavailable(
          "the GPU has been at one NCCL collective, or has waited for its input, for " +
          Seconds(limit) + " (HORON_NCCL_TIMEOUT): a rank is stuck");
    if (!ended) return Status::Ok();
  }
  HORON_ASSIGN(const bool all, last_group_->Done());
  watched_ = all ? nullptr : last_group_;
  watched_since_ = now;
  return Status::Ok();
}

// Whether what groups were given last has ended, after at most a while.
bool GpuRoad::DeviceEnds() const {
  if (!last_group_) return true;
  for (const auto until = std::chrono::steady_clock::now() + kMostFarewell;;) {
    const Result<bool> ended = last_group_->Done();
    if (!ended.ok() || ended.value()) return ended.ok();
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kWatchEvery);
  }
}

// A group that is stuck keeps all that it was given, for as long as the process lives: to end its
// streams would be to wait for kernels that may never end.
void GpuRoad::End(Share& share, bool in_peace) {
  if (!share.group) return;
  if (in_peace) {
    share.group->Leave();
  } else {
    share.group->Abort();
  }
  if (!share.group->stuck()) return;
  struct Left {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<Pool> device_pool, registered_pool;
    Share share;
  };
  static auto* const left = new std::vector<Left>;
  left->push_back({gpu_, device_pool_, registered_pool_, std::move(share)});
  share = Share();
}

void GpuRoad::Forget(int32_t process_set) {
  const auto found = shares_.find(process_set);
  if (found == shares_.end()) return;
  End(found->second, true);
  shares_.erase(found);
}

// Handles of what is enqueued have finished long ago: here is said what that is worth.
void GpuRoad::Abort() {
  if (last_group_) {
    const Result<bool> ended = last_group_->Done();
    if (!ended.ok() || !ended.value())
      Log(LogLevel::kError, "gpu",
          "collectives of GPU tensors that had not ended on the device are aborted: what they "
          "wrote is worth nothing, also where a step has used it; go on from a checkpoint");
  }
  for (auto& [set, share] : shares_) End(share, false);
  borrowed_.clear();
  shares_.clear();  // copies that still run end now, before their tensors are given back
  last_group_ = watched_ = nullptr;
}

}  // namespace horon
