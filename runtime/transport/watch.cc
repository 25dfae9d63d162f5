#include "runtime/transport/watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/base/system_error.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
// The end of a peer's socket is seen at once; what became of it the launcher says a little later.
constexpr std::chrono::milliseconds kLauncherWait{300};
constexpr std::chrono::milliseconds kFirstSweep{5000};

}  // namespace

Watch::Watch(WatchParts parts)
    : parts_(std::move(parts)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      soon_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      error_(stop_.get() < 0 || soon_.get() < 0 ? errno : 0) {
  if (error_ == 0) thread_ = std::thread([this] { Run(); });
}

Status Watch::status() const {
  if (error_ == 0) return Status::Ok();
  return Status::Unavailable("the job cannot be watched: " + SystemError(error_));
}

Watch::~Watch() { Stop(); }

void Watch::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void Watch::Run() {
  pthread_setname_np(pthread_self(), "horon-watch");
  std::vector<pollfd> waiting{{stop_.get(), POLLIN, 0}};
  look_at_ = Clock::now() + kFirstSweep;
  waiting.push_back({parts_.launcher ? parts_.launcher->fd : -1, POLLIN, 0});
  waiting.push_back({parts_.describe_fd, POLLIN, 0});
  waiting.push_back({soon_.get(), POLLIN, 0});
  const size_t first_peer = waiting.size();
  for (const auto& [peer, local] : parts_.peers) waiting.push_back({peer.get(), POLLIN, 0});
  for (;;) {
    if (poll(waiting.data(), waiting.size(), Patience()) < 0 && errno != EINTR) return;
    if (waiting[0].revents != 0) return;
    for (size_t i = 1; i < waiting.size(); ++i) {
      if (std::exchange(waiting[i].revents, short{0}) == 0) continue;
      bool more = true;
      if (i == 1) more = HearLauncher();
      if (i == 2) HearSignal();
      if (i == 3) HearSoon();
      if (i >= first_peer) more = HearPeer(waiting[i].fd, parts_.peers[i - first_peer].second);
      if (!more) waiting[i].fd = -1;
    }
    GiveUpPeers();
    Look();
  }
}

bool Watch::HearPeer(int fd, int local) {
  const auto packet = ReceivePacket(fd, Clock::now());
  if (packet.ok() && !packet.value().text.empty()) return true;
  const auto wait = parts_.launcher ? kLauncherWait : std::chrono::milliseconds{0};
  gone_.emplace_back(Clock::now() + wait, parts_.members[static_cast<size_t>(local)]);
  return false;
}

// In ms, as poll wants it: until a peer that has gone is given up without a cause, or the runtime
// looked at.
int Watch::Patience() {
  auto next = look_at_;
  if (!gone_.empty()) next = std::min(next, gone_.front().first);
  const auto left = next - Clock::now();
  return std::max(0, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

// Whose cause has become known meanwhile is marked already, and stays so.
void Watch::GiveUpPeers() {
  while (!gone_.empty() && gone_.front().first <= Clock::now()) {
    const int rank = gone_.front().second;
    gone_.pop_front();
    Lost(rank, "rank " + std::to_string(rank) +
                   " ended without leaving the job (killed, or it exited without shutdown)");
  }
}

void Watch::OnDescribe(std::function<void()> describe) {
  MutexLock lock(mutex_);
  describe_ = std::move(describe);
}

void Watch::OnLook(std::function<std::chrono::milliseconds()> look) {
  MutexLock lock(mutex_);
  look_ = std::move(look);
}

void Watch::Look() {
  if (Clock::now() < look_at_) return;
  MutexLock lock(mutex_);
  look_at_ = Clock::now() + (look_ ? look_() : kFirstSweep);
}

void Watch::LookSoon() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(soon_.get(), &one, sizeof(one));
}

void Watch::HearSoon() {
  uint64_t times = 0;
  if (read(soon_.get(), &times, sizeof(times)) > 0) look_at_ = Clock::now();
}

void Watch::HearSignal() {
  uint64_t times = 0;
  if (read(parts_.describe_fd, &times, sizeof(times)) <= 0) return;
  MutexLock lock(mutex_);
  if (describe_) describe_();
}

bool Watch::HearLauncher() {
  const auto packet = ReceivePacket(parts_.launcher->fd, Clock::now());
  if (!packet.ok()) return true;
  if (packet.value().fd >= 0) {
    MutexLock lock(parts_.launcher->mutex);
    parts_.launcher->kept.push_back(packet.value());
    return true;
  }
  const std::string& text = packet.value().text;
  if (text.empty()) {
    LostAll("horonrun, which started this job, is gone");
    return false;
  }
  const auto dead = ReadTold(text, "dead");
  if (!dead) return true;
  if (dead->number < 0) {
    LostAll(dead->rest);
  } else {
    Lost(dead->number, dead->rest);
  }
  return true;
}

void Watch::Lost(int rank, const std::string& sentence) {
  for (size_t i = 0; parts_.segment && i < parts_.members.size(); ++i) {
    if (parts_.members[i] != rank) continue;
    parts_.segment->MarkDead(static_cast<int>(i), sentence);  // rings, too
    return;
  }
  parts_.losses->Report(rank, parts_.segment
                                  ? parts_.segment->FirstKnown(parts_.local_rank, sentence)
                                  : sentence);
  Doorbell& bell =
      parts_.segment ? parts_.segment->rank(parts_.local_rank).bell : parts_.losses->bell();
  bell.Ring();
}

// Not a rank but the way to all others is lost.
void Watch::LostAll(const std::string& sentence) {
  for (size_t i = 0; parts_.segment && i < parts_.members.size(); ++i) {
    if (static_cast<int>(i) != parts_.local_rank)
      parts_.segment->MarkDead(static_cast<int>(i), sentence);
  }
  Lost(-1, sentence);
}

void Watch::Tell(const std::string& packet) {
  if (!parts_.launcher) return;
  const Status sent = SendPacket(parts_.launcher->fd, packet, -1);
  (void)sent;
}

void Watch::SayBye() {
  if (parts_.segment) parts_.segment->MarkLeft(parts_.local_rank);
  Stop();  // what comes from now on is for the next init
  Tell("bye");
}

void Watch::SayLost(const std::string& what) {
  Tell(what);
  if (!parts_.segment) return;
  const int rank = parts_.members[static_cast<size_t>(parts_.local_rank)];
  parts_.segment->MarkDead(parts_.local_rank, "rank " + std::to_string(rank) + " " + what);
}

}  // namespace horon
