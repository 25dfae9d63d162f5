#include "runtime/core/work.h"

#include <algorithm>
#include <utility>

#include "runtime/base/futex.h"

namespace horon {

bool Work::WaitFor(std::chrono::nanoseconds limit) const {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    uint32_t pending = kPending;
    state_.compare_exchange_strong(pending, kAwaited, std::memory_order_acq_rel);
    FutexWait(state_, kAwaited, ~0u, left);
  }
  return true;
}

void Work::Expect(const SharedRegistration& what) {
  if (gathers_) remaining_.fetch_add(1, std::memory_order_relaxed);
  if (first_) {
    later_.push_back(what);
  } else {
    first_ = what;
  }
}

void Work::Unexpect() {
  if (gathers_) remaining_.fetch_sub(1, std::memory_order_relaxed);  // not the last: it is open
  if (later_.empty()) {
    first_.reset();
  } else {
    later_.pop_back();
  }
}

void Work::Close() {
  if (!gathers_ || std::exchange(closed_, true)) return;
  FinishOne();
}

const SharedRegistration& Work::first() const {
  if (later_.empty()) return first_;
  const bool over = done();
  const auto stands = [&](const SharedRegistration& what) {
    if (!over) return what->pending();
    return std::find(failed_.begin(), failed_.end(), what.get()) != failed_.end();
  };
  if (stands(first_)) return first_;
  const auto found = std::find_if(later_.begin(), later_.end(), stands);
  return found == later_.end() ? first_ : *found;
}

uint64_t Work::number() const {
  static std::atomic<uint64_t> last{0};
  uint64_t number = number_.load(std::memory_order_relaxed);
  if (number != 0) return number;
  const uint64_t fresh = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number_.compare_exchange_strong(number, fresh, std::memory_order_relaxed) ? fresh : number;
}

Result<bool> Work::Settled() const {
  for (const Output& output : outputs()) {
    if (!output.done) continue;
    HORON_ASSIGN(const bool settled, output.done->Done());
    if (!settled) return false;
  }
  return true;
}

// Members that ran in one bucket share an event.
Status Work::HoldBack(void* stream) const {
  const Event* last = nullptr;
  for (const Output& output : outputs()) {
    if (!output.done) continue;
    if (output.on_gpu) output.on_gpu->ReadOn(stream);
    if (output.done.get() == last) continue;
    last = output.done.get();
    HORON_TRY(output.done->HoldBack(stream));
  }
  return Status::Ok();
}

void Work::Fail(Status status, const SharedRegistration& what) {
  MutexLock lock(mutex_);
  if (status_.ok()) status_ = std::move(status);
  if (gathers_) failed_.push_back(what.get());
}

void Work::FinishOne() {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) FutexWake(state_, ~0u);
}

Promise& Promise::operator=(Promise&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  work_ = std::move(other.work_);
  member_ = other.member_;
  what_ = std::move(other.what_);
  return *this;
}

void Promise::Finish(Status status) {
  if (!work_) return;
  if (!status.ok()) work_->Fail(std::move(status), what_);
  if (what_) {
    what_->Release();
    output().of = std::move(what_);
  }
  const std::shared_ptr<Work> work = std::move(work_);
  work_.reset();
  work->FinishOne();
}

}  // namespace horon
