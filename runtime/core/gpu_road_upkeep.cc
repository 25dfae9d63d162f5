// What a GpuRoad does between buckets: its blocks of memory, what the device is done with, and
// whether it gets on.
#include <algorithm>
#include <bit>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/core/gpu_road.h"
#include "runtime/core/gpu_waits.h"

namespace horon {
namespace {

// How often the device is asked whether it has ended a collective.
constexpr std::chrono::milliseconds kWatchEvery{10};
// What a device may still be at when its collectives are aborted: kernels of the program's, say.
constexpr std::chrono::milliseconds kMostEnding{10'000};
constexpr std::chrono::milliseconds kMostFarewell{30'000};

}  // namespace

// As large as the threshold at once, but for few bytes: to free what is outgrown would be to wait
// for the device, so it stays in its pool, and is less than an eighth of that. (More where the
// autotuner raises the threshold, or a bucket with its padding needs more than that.)
Result<std::byte*> GpuRoad::Block(const GpuBucket& bucket, Share& share, int64_t bytes) {
  if (share.fusion.bytes() >= bytes) return share.fusion.data();
  if (bytes > bucket.fusion_bytes() / 16) bytes = std::max(bytes, bucket.fusion_bytes());
  if (share.registration != MemoryRegistration::kEach || !share.group) {
    HORON_TRY(Retire(*share.stream, std::move(share.fusion)));
    HORON_ASSIGN(share.fusion, device_pool_->Take(bytes));
    return share.fusion.data();
  }
  if (share.fusion.data() != nullptr) {
    HORON_ASSIGN(SharedEvent done, share.stream->Record());
    share.outgrown.emplace_back(std::move(done), std::move(share.fusion));
  }
  HORON_ASSIGN(share.fusion, registered_pool_->Take(bytes));
  HORON_TRY(share.group->Register({share.fusion.data(), share.fusion.bytes()}));
  return share.fusion.data();
}

// Of a bucket that takes equally many bytes on all ranks, as its threshold is: what it is packed
// into may so be registered by all together, at the same bucket. None is taken back before the
// group has gone: the ranks would have to do that at the same place in their order of calls, too,
// and the device to have done with it then on all of them. Two do, unless buckets outgrow the
// threshold.
Result<std::byte*> GpuRoad::BlockAlike(const GpuBucket& bucket, Share& share, int64_t bytes) {
  if (share.registration != MemoryRegistration::kTogether || !share.group)
    return Block(bucket, share, bytes);
  if (!share.together.empty() && share.together.back().bytes() >= bytes)
    return share.together.back().data();
  const int64_t most = bucket.fusion_bytes(), few = most / 16;
  bytes = bytes > few ? std::max(bytes, most) : few;
  const auto whole = std::bit_ceil(static_cast<uint64_t>(bytes));  // seldom more of them
  HORON_ASSIGN(Buffer block, registered_pool_->Take(static_cast<int64_t>(whole)));
  share.together.push_back(std::move(block));
  const Buffer& last = share.together.back();
  HORON_ASSIGN(const MemoryRegistration done,
               share.group->RegisterTogether({last.data(), last.bytes()}));
  if (done != MemoryRegistration::kTogether && share.together.size() == 1)
    Log(LogLevel::kWarn, "gpu",
        "NCCL registers no memory with all ranks here: the GPUs do not all reach each other's");
  return last.data();
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
  SweepEndings();
  for (auto& [set, share] : shares_) {
    if (share.group) HORON_TRY(share.group->Check());
    HORON_TRY(SweepOutgrown(share));
    if (share.direct) HORON_TRY(gpu_->Attach());
  }
  return Watch();
}

// Of the user's; 0: none.
std::chrono::milliseconds GpuRoad::limit() const {
  return gpus_ ? gpus_->choices().groups.timeout : std::chrono::milliseconds(0);
}

std::chrono::milliseconds GpuRoad::AtMost(std::chrono::milliseconds most) const {
  return limit().count() > 0 ? std::min(limit(), most) : most;
}

// What waits for the device on its way looks at the time by itself: what a group was given before.
std::chrono::milliseconds GpuRoad::PatienceFor(const Share& share) const {
  return share.group ? limit() : std::chrono::milliseconds(0);
}

// A device that is lost tells whoever asks: a rank that does not call again would say nothing, and
// its peers wait. (Alone it is the next call's business.) What groups were given has to end in time:
// buckets end in order, so that is the time since the one before the oldest ended.
Status GpuRoad::Watch() {
  if (!last_ || fabric_->topology.size() == 1) return Status::Ok();
  const auto now = std::chrono::steady_clock::now();
  if (now - watched_at_ < kWatchEvery) return Status::Ok();
  watched_at_ = now;
  HORON_TRY(last_->Done().status());
  if (limit().count() == 0 || !last_group_) return Status::Ok();
  if (watched_) {
    HORON_ASSIGN(const bool ended, watched_->Done());
    if (!ended && now - watched_since_ > limit()) return GpuTooLong(limit());
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
  for (const auto until = std::chrono::steady_clock::now() + AtMost(kMostFarewell);;) {
    const Result<bool> ended = last_group_->Done();
    if (!ended.ok() || ended.value()) return ended.ok();
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kWatchEvery);
  }
}

// Waits for nothing: to part from other ranks takes as long as they take to come, and to end a
// stream is to wait for its kernels.
void GpuRoad::BeginToEnd(Share share) {
  Ending ending;
  if (share.last) ending.last.push_back(share.last);
  for (const auto* stream : {&share.stream, &share.down, &share.up}) {
    if (!*stream) continue;
    Result<SharedEvent> last = (*stream)->Record();
    if (last.ok()) ending.last.push_back(std::move(last).value());  // or the device is lost
  }
  ending.share = std::move(share);
  endings_.push_back(std::move(ending));
}

// A group is left when the device has done its collectives: one that is being left cannot be
// aborted any more, if a rank dies before its part of one.
bool GpuRoad::Ended(Ending& ending) {
  std::erase_if(ending.last, [](const SharedEvent& event) {
    const Result<bool> done = event->Done();
    return !done.ok() || done.value();
  });
  if (!ending.last.empty()) return false;
  GpuGroup* const group = ending.share.group.get();
  if (group != nullptr && !std::exchange(ending.told, true)) group->Leave();
  return group == nullptr || group->gone();
}

// Streams are used again: to free the memory that they work in is to wait for the GPU.
void GpuRoad::SweepEndings() {
  std::erase_if(endings_, [&](Ending& ending) {
    if (!Ended(ending)) return false;
    Share& ended = ending.share;
    if (ended.stream && ended.down && ended.up) {
      Share& spare = spare_.emplace_back();
      spare.stream = std::move(ended.stream);
      spare.down = std::move(ended.down);
      spare.up = std::move(ended.up);
    }
    return true;
  });
}

// All at once: a device may be at the collectives of several groups, which one has to be aborted
// for another to end.
void GpuRoad::EndAll(bool in_peace, std::chrono::milliseconds most, const Alive& alive) {
  for (auto& [set, share] : shares_) BeginToEnd(std::move(share));
  shares_.clear();
  for (Ending& ending : endings_) {
    if (in_peace || !ending.share.group || std::exchange(ending.told, true)) continue;
    ending.share.group->Abort();
  }
  const auto hopeless = [](const Ending& ending) {
    return ending.share.group && ending.share.group->stuck();
  };
  const auto until = std::chrono::steady_clock::now() + most;
  for (bool wait = true; wait;) {
    SweepEndings();
    wait = !std::all_of(endings_.begin(), endings_.end(), hopeless) &&
           std::chrono::steady_clock::now() < until;
    if (wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    alive();
  }
  if (!endings_.empty()) LeaveBehind();
}

// Streams end before the pools that they write to.
GpuRoad::~GpuRoad() {
  const bool in_peace = DeviceEnds();
  EndAll(in_peace, AtMost(kMostFarewell), [] {});
  spare_.clear();
}

struct GpuRoad::Left {
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<Pool> device_pool, pinned_pool, registered_pool;
  std::shared_ptr<GpuReturns> returns;
  std::vector<Ending> endings;
  std::vector<Share> spare;
};

// All that the device may still use, and whose end would be to wait for it, is kept for as long as
// the process lives.
void GpuRoad::LeaveBehind() {
  Log(LogLevel::kError, "gpu",
      "the GPU has not ended what it was at, or a call of NCCL's has not returned: its memory and "
      "its streams are left as they are; do not use the tensors of this job again in this process");
  for (Ending& ending : endings_) {
    if (ending.share.group && ending.share.group->gone()) ending.share.group.reset();
  }
  static Mutex mutex;
  static auto* const left = new std::vector<Left>;
  MutexLock lock(mutex);
  left->push_back({gpu_, device_pool_, pinned_pool_, registered_pool_, returns_,
                   std::exchange(endings_, {}), std::exchange(spare_, {})});
}

void GpuRoad::Forget(int32_t process_set) {
  const auto found = shares_.find(process_set);
  if (found == shares_.end()) return;
  BeginToEnd(std::move(found->second));
  shares_.erase(found);
}

// Handles of what is enqueued have finished long ago: here is said what that is worth.
void GpuRoad::Abort(const Alive& alive) {
  if (last_group_) {
    const Result<bool> ended = last_group_->Done();
    if (!ended.ok() || !ended.value())
      Log(LogLevel::kError, "gpu",
          "collectives of GPU tensors that had not ended on the device are aborted: what they "
          "wrote is worth nothing, also where a step has used it; go on from a checkpoint");
  }
  EndAll(false, AtMost(kMostEnding), alive);  // before tensors of what still runs are given back
  borrowed_.clear();
  last_ = last_group_ = watched_ = nullptr;
}

}  // namespace horon
