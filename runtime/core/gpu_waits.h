// What a bucket on a GPU waits for: its turn, an event, the other ranks of a new group. Each is
// asked again whenever the runtime made progress, or some 50 us later. Used by gpu_road.cc and
// gpu_road_ways.cc; holder of the baton.
#pragma once

#include <chrono>

#include "runtime/base/seconds.h"
#include "runtime/base/task.h"
#include "runtime/transport/gpu_group.h"

namespace horon {

inline constexpr int kGpuNodeLevel = 3;  // of a bucket's messages among a node's ranks
// Between nodes a chunk of so many bytes is sent while the next one is copied to the host, which
// has places for so many each way.
inline constexpr int64_t kGpuChunkBytes = 4 << 20;
inline constexpr size_t kGpuPlaces = 16;

// A rank that is stuck, or a network that is gone, without anybody noticing: the device waits.
inline Status GpuTooLong(std::chrono::milliseconds limit) {
  return Status::Unavailable(
      "the GPU has been at one NCCL collective, or has waited for its input, for " +
      Seconds(limit) + " (HORON_NCCL_TIMEOUT): a rank is stuck");
}

// A bucket's place in the order. Passed on when the Task is over, or earlier.
class GpuTurn final : public Waitable {
 public:
  GpuTurn(uint64_t& serving, uint64_t ticket) : serving_(serving), ticket_(ticket) {}
  ~GpuTurn() override { Pass(); }
  bool Ready() override { return serving_ == ticket_; }
  void Pass() {
    if (serving_ == ticket_) ++serving_;
  }

 private:
  uint64_t& serving_;
  uint64_t ticket_;
};

// Counts itself in `awaited` while it lives.
class GpuWait : public Waitable {
 public:
  explicit GpuWait(int& awaited) : awaited_(awaited) { ++awaited_; }
  ~GpuWait() override { --awaited_; }
  GpuWait(const GpuWait&) = delete;
  GpuWait& operator=(const GpuWait&) = delete;
  bool Ready() override {
    const Result<bool> there = Ask();
    if (!there.ok()) status_ = there.status();
    return !there.ok() || there.value();
  }
  const Status& status() const { return status_; }  // once ready

 private:
  virtual Result<bool> Ask() = 0;
  int& awaited_;
  Status status_;
};

// `limit`: an error where it takes longer, behind a collective of NCCL's; 0: none.
class EventDone final : public GpuWait {
 public:
  EventDone(Event& event, int& awaited, std::chrono::milliseconds limit)
      : GpuWait(awaited), event_(event), limit_(limit) {}

 private:
  using WaitClock = std::chrono::steady_clock;
  Result<bool> Ask() override {
    Result<bool> done = event_.Done();
    const bool limited = limit_.count() > 0 && done.ok() && !done.value();
    if (limited && WaitClock::now() - begun_ > limit_) return GpuTooLong(limit_);
    return done;
  }
  Event& event_;
  const std::chrono::milliseconds limit_;
  const WaitClock::time_point begun_ = WaitClock::now();
};

class GroupMet final : public GpuWait {
 public:
  GroupMet(GpuGroup& group, int& awaited) : GpuWait(awaited), group_(group) {}

 private:
  Result<bool> Ask() override { return group_.Ready(); }
  GpuGroup& group_;
};

}  // namespace horon
