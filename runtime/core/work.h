// Work: the handle of something pending, shared by the user and the runtime; and Promise, the
// runtime's half. A Work of a group has one promise per member and finishes with the last of them,
// with the first failure if there was one; so does one that gathers, which gets its members one by
// one until it is closed. A promise that is destroyed unkept fails its member: every Work finishes
// exactly once, at shutdown and on errors too.
//
// Work: any thread. Promise: the holder of the baton.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor.h"
#include "runtime/core/registry.h"
#include "runtime/device/gpu_loan.h"

namespace horon {

// What the runtime hands to the user beside a finished tensor.
struct Output {
  std::byte* data = nullptr;  // in `owned`, or the user's own output
  bool users = false;         // the user's own: as large as the input
  Buffer owned;
  SharedEvent done = nullptr;  // GPU: when the output may be read; the work is finished before
  std::shared_ptr<GpuLoan> on_gpu = nullptr;  // GPU: owns `data` if the user does not
  Shape owned_shape;
  std::vector<int64_t> received_splits;
  SharedRegistration of;  // once done

  const Shape& shape() const { return users ? of->request.shape : owned_shape; }
};

class Work {
 public:
  struct Gathers {};
  explicit Work(int members) : remaining_(members) {
    if (members != 1) of_group_.resize(static_cast<size_t>(members));
  }
  explicit Work(Gathers) : gathers_(true), remaining_(1) {}

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  // Blocks until finished or the time is over; whether it is finished.
  bool WaitFor(std::chrono::nanoseconds limit) const;
  const Status& status() const { return status_; }  // once done
  // Before a tensor of it is submitted; of one that gathers, before each.
  void Expect(const SharedRegistration& what);
  // That one was refused.
  void Unexpect();
  // Of one that gathers: no more come. Any other, and one that is closed, stays as it is. On the
  // thread that submits.
  void Close();
  // Whether it gathers, and more may come. On the thread that submits.
  bool open() const { return gathers_ && !closed_; }
  // Its first tensor, which it stands for; of one that gathers, the first that is pending, if any,
  // and once done the first that failed, if any. Null before there is one. On the threads that
  // submit and wait.
  const SharedRegistration& first() const;
  // Who begins it waits for it at once: a call that blocks. Before it is submitted.
  void WillBlock() { blocks_ = true; }
  // A thread waits for it while this lives.
  class Caller {
   public:
    explicit Caller(Work& work) : work_(work) {
      if (work.blocks_) work.caller_.store(ThisThread(), std::memory_order_relaxed);
    }
    ~Caller() {
      if (work_.blocks_) work_.caller_.store(nullptr, std::memory_order_relaxed);
    }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

   private:
    Work& work_;
  };
  // Whether it is this thread that waits for it, in a call that blocks: whatever is done for it
  // here is done by that call, on the caller's stream, too.
  bool called_here() const { return caller_.load(std::memory_order_relaxed) == ThisThread(); }
  // A thread of this process waits for a work, or looks how one ended. Any thread.
  static void NoteWait() {
    if (!waited_.load(std::memory_order_relaxed)) waited_.store(true, std::memory_order_relaxed);
  }
  // Whether one has since the last call of this.
  static bool TakeWaited() { return waited_.exchange(false, std::memory_order_relaxed); }
  // No other work of this process ever has it. Never 0; any thread.
  uint64_t number() const;
  // Whether the device, too, has finished with all of it. Once done.
  Result<bool> Settled() const;
  // What is enqueued on this stream of the framework from now on sees the outputs. Once done.
  Status HoldBack(void* stream) const;
  // User: once done and ok. One that gathers has none to show.
  std::span<Output> outputs() {
    return of_group_.empty() ? std::span(&alone_, gathers_ ? 0 : 1) : std::span(of_group_);
  }
  std::span<const Output> outputs() const { return const_cast<Work*>(this)->outputs(); }
  // The user is through with the outputs. What a GPU holds goes back behind what the user's stream
  // has enqueued so far: now, because the runtime may hold its part of the work a moment longer
  // than the user keeps the stream. Once done.
  void DropOutputs() {
    for (Output& output : outputs()) output.on_gpu.reset();
  }

 private:
  friend class Promise;
  void FinishOne();
  // One of its tensors, which is not yet finished.
  void Fail(Status status, const SharedRegistration& what);
  Output& output(int member) {
    return of_group_.empty() ? alone_ : of_group_[static_cast<size_t>(member)];
  }

  static const void* ThisThread() {
    static thread_local const char thread = 0;
    return &thread;
  }

  static constexpr uint32_t kPending = 0, kDone = 1, kAwaited = 2;  // awaited: somebody sleeps
  static inline std::atomic<bool> waited_{false};

  const bool gathers_ = false;
  bool blocks_ = false;
  std::atomic<const void*> caller_{nullptr};
  bool closed_ = false;
  SharedRegistration first_;
  std::vector<SharedRegistration> later_;  // of one that gathers: its other tensors
  mutable std::atomic<uint32_t> state_{kPending};
  mutable std::atomic<uint64_t> number_{0};  // 0: nobody has asked for it
  std::atomic<int> remaining_;
  Mutex mutex_;  // guards the next two until done
  Status status_;
  std::vector<const Registration*> failed_;  // of one that gathers
  Output alone_;  // most works are of one tensor; where one gathers, all write here, in turn
  std::vector<Output> of_group_;
};

class Promise {
 public:
  Promise() = default;
  // `what` is pending until the promise is kept; may be null.
  Promise(std::shared_ptr<Work> work, int member, SharedRegistration what)
      : work_(std::move(work)), member_(member), what_(std::move(what)) {}
  Promise(Promise&&) = default;
  Promise& operator=(Promise&& other) noexcept;
  ~Promise() { Drop(); }

  // Once; later calls and the destructor do nothing. The name is free before the waiter wakes.
  void Finish(Status status);
  Output& output() { return work_->output(member_); }
  bool called_here() const { return work_ && work_->called_here(); }

 private:
  // Entries move on from stage to stage: most promises that die have been moved away.
  void Drop() {
    if (work_) Finish(Status::Aborted("the runtime dropped this tensor before it was done"));
  }
  std::shared_ptr<Work> work_;
  int member_ = 0;
  SharedRegistration what_;
};

}  // namespace horon
