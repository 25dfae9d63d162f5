#include "runtime/core/timeline_recording.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/host_name.h"
#include "runtime/base/log.h"

namespace horon {
namespace {

// What a killed rank may not have written yet; and how often an idle recording looks.
constexpr std::chrono::milliseconds kPeriod{100};
// Of one write: other ranks wait for the file meanwhile.
constexpr size_t kPiece = 32 << 10;
constexpr int kNicer = 5;

// The user's own threads come first.
void GiveWay() {
  pthread_setname_np(pthread_self(), "horon-timeline");
  const auto me = static_cast<id_t>(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, me, std::min(19, getpriority(PRIO_PROCESS, me) + kNicer));
}

}  // namespace

void TimelineProgress::Reached(uint64_t number) {
  {
    MutexLock lock(mutex_);
    reached_ = std::max(reached_, number);
  }
  changed_.notify_all();
}

bool TimelineProgress::Await(uint64_t number, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  while (reached_ < number) {
    if (changed_.wait_until(mutex_, until) == std::cv_status::timeout) break;
  }
  return reached_ >= number;
}

bool TimelineNotes::Put(TimelineNote&& note) {
  MutexLock lock(mutex_);
  if (notes_.size() == kMost) return false;
  notes_.push_back(std::move(note));
  return true;
}

std::vector<TimelineNote> TimelineNotes::Take() {
  MutexLock lock(mutex_);
  return std::exchange(notes_, {});
}

TimelineRecording::TimelineRecording(int rank, const TimelineOrder& order,
                                     std::shared_ptr<TimelineProgress> progress,
                                     const Counters& counters, size_t places)
    : rank_(rank),
      order_(order),
      progress_(std::move(progress)),
      ring_(places),
      tracks_(counters) {
  thread_ = std::thread([this] { Write(); });
}

TimelineRecording::~TimelineRecording() {
  End(0);
  thread_.join();
}

bool TimelineRecording::Put(TimelineEvent&& event) {
  if (!ring_.Put(std::move(event))) return false;
  if (ring_.size() == ring_.capacity() / 2) changed_.notify_one();
  return true;
}

void TimelineRecording::SetClock(int64_t offset, int64_t bound) {
  {
    MutexLock lock(mutex_);
    clock_ = TimelineText::Clock{offset, bound, order_.epoch};
  }
  changed_.notify_one();
}

void TimelineRecording::End(uint64_t number) {
  {
    MutexLock lock(mutex_);
    ended_ = true;
    ended_by_ = std::max(ended_by_, number);
  }
  changed_.notify_one();
}

// If it never comes, rank 0 is gone, and this rank's own clock has to do.
TimelineText::Clock TimelineRecording::AwaitClock() {
  MutexLock lock(mutex_);
  while (!clock_ && !ended_) changed_.wait(mutex_);
  return clock_.value_or(TimelineText::Clock{0, -1, order_.epoch});
}

// Whether more may come.
bool TimelineRecording::AwaitMore() {
  const auto until = std::chrono::steady_clock::now() + kPeriod;
  MutexLock lock(mutex_);
  while (!ended_ && ring_.size() < ring_.capacity() / 2) {
    if (changed_.wait_until(mutex_, until) == std::cv_status::timeout) break;
  }
  return !ended_;
}

uint64_t TimelineRecording::ended_by() {
  MutexLock lock(mutex_);
  return ended_by_;
}

void TimelineRecording::Write() {
  GiveWay();
  const TimelineText::Clock clock = AwaitClock();
  auto file = TimelineFile::Open(order_.path, order_.id);
  if (file.ok()) {
    TimelineText text(rank_, clock);
    std::string out = text.Opening(HostName(), order_.epoch_us);
    bool more = Append(file.value(), out);
    while (more) {
      more = AwaitMore();
      Drain(file.value(), text);
    }
  } else {
    Log(LogLevel::kWarn, "timeline", file.status().message());
  }
  written_.store(true, std::memory_order_release);
  progress_->Reached(ended_by());
}

void TimelineRecording::Drain(TimelineFile& file, TimelineText& text) {
  std::string out;
  while (std::optional<TimelineEvent> event = ring_.Take()) {
    text.Write(*event, out);
    if (out.size() >= kPiece && !Append(file, out)) return;
  }
  for (const TimelineNote& note : notes_->Take()) {
    text.Write(note, out);
    if (out.size() >= kPiece && !Append(file, out)) return;
  }
  tracks_.Write(SteadyNow(), text, out);
  const uint64_t dropped = ring_.dropped();
  if (dropped > dropped_told_) text.WriteDropped(dropped - dropped_told_, SteadyNow(), out);
  dropped_told_ = dropped;
  if (!out.empty()) Append(file, out);
}

bool TimelineRecording::Append(TimelineFile& file, std::string& out) {
  const Status status = file.Append(out);
  out.clear();
  if (!status.ok()) Log(LogLevel::kWarn, "timeline", status.message());
  return status.ok();
}

}  // namespace horon
