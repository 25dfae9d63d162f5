// How a runtime fails: a symptom, then its cause, then an error for everything that waits.
#include <exception>

#include "runtime/base/log.h"
#include "runtime/core/runtime.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
// A transport notices a lost peer before the launcher can say what became of it.
constexpr std::chrono::milliseconds kCauseWait{500};
constexpr int kLastRounds = 64;  // that what was sent before a loss has to be taken

}  // namespace

// No cycle is run from here on.
void Runtime::Suspect(const Status& symptom) {
  suspicion_ = symptom;
  const int lost = negotiator_.lost();
  if (lost >= 0 && lost != rank_) {
    const bool here = segment_ && fabric_.topology.node_of(lost) == fabric_.topology.node_of(rank_);
    if (here) segment_->MarkDead(fabric_.topology.local_rank(lost), symptom.message());
    losses_->Report(lost, segment_ ? segment_->FirstKnown(local_rank(), symptom.message())
                                   : symptom.message());
    on_loss_(lost, symptom.message());
  }
  const bool cause_will_come =
      launched_ && !told_to_give_up_ && symptom.code() == Code::kUnavailable;
  judge_at_ = Clock::now() + (cause_will_come ? kCauseWait : std::chrono::milliseconds{0});
}

// Ok while it may still become known.
Status Runtime::Cause() const {
  if (losses_->any()) return Status::Unavailable(losses_->sentence());
  if (segment_ && suspicion_.code() == Code::kUnavailable)
    HORON_TRY(segment_->Deaths(local_rank()));
  return Clock::now() >= judge_at_ ? suspicion_ : Status::Ok();
}

// A rank that ends because of a verdict may be gone before others have looked for it: they hear the
// verdict, too, and not that the rank is lost.
void Runtime::HearTheLast() {
  try {
    bool heard = true;
    for (int round = 0; heard && round < kLastRounds; ++round) {
      heard = false;
      for (const auto& transport : transports_) {
        const Result<bool> moved = transport->Progress();
        heard = heard || (moved.ok() && moved.value());
      }
      heard = negotiator_.HearTheLast() || heard;
    }
  } catch (const std::exception&) {  // out of memory: then everything fails with the loss
  }
}

void Runtime::Fail(const Status& status) {
  const bool fault = status.code() == Code::kUnavailable || status.code() == Code::kInternal;
  if (failure_.ok() && fault && !told_to_give_up_)
    Log(LogLevel::kError, "runtime", status.message());
  const bool known = losses_->any() || (segment_ && !segment_->Deaths(local_rank()).ok());
  if (failure_.ok()) {
    Record(recorder_, fault ? EventKind::kLost : EventKind::kLeft, status.message());
  }
  if (failure_.ok() && fault && !known && !told_to_give_up_) {
    const std::string what = "failed: " + status.message();
    on_fault_(what);
    if (segment_) segment_->MarkDead(local_rank(), "rank " + std::to_string(rank_) + " " + what);
  }
  if (failure_.ok() && fault) {
    lost_.store(true, std::memory_order_relaxed);
    for (const auto& transport : transports_) {
      transport->Abandon();
      if (status.code() == Code::kInternal) transport->Leave();  // the fault is this rank's own
    }
    letters_.Close();
  }
  failure_ = suspicion_ = status;
  // A GPU may take its time to end, which the watchdog is not to take for a standstill.
  executor_.FailAll(status, [this] {
    cycles_->store(cycles_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  });
  queue_.Close(status);
  negotiator_.FailAll(status);
  if (status.code() == Code::kAborted) {
    peers_.FailAll(status);
  } else {
    peers_.CutLinks(status);
  }
}

void Runtime::GiveUp(const std::string& what) {
  {
    MutexLock lock(given_up_mutex_);
    if (!given_up_.empty()) return;
    given_up_ = "rank " + std::to_string(rank_) + " " + what;
  }
  giving_up_.store(true, std::memory_order_release);
  lost_.store(true, std::memory_order_relaxed);
  bell_->Ring();
}

}  // namespace horon
