#include "runtime/transport/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kPacket = 512;

std::string Errno(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// One packet, with a descriptor if fd >= 0.
Status SendPacket(int to, const std::string& text, int fd) {
  iovec iov{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t n = 0;
  do {
    n = sendmsg(to, &message, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return Status::Unavailable(Errno("cannot send to the node's other ranks"));
  return Status::Ok();
}

using Packet = LauncherSocket::Packet;

// The next packet; an empty text at end of file. `limit` bounds the wait.
Result<Packet> ReceivePacket(int from, Clock::time_point until) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waiting{from, POLLIN, 0};
    const int ready = poll(&waiting, 1, left > 0 ? static_cast<int>(left) : 0);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return Status::Unavailable("timed out (HORON_START_TIMEOUT)");
    char text[kPacket];
    iovec iov{text, sizeof(text)};
    msghdr message{};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    Packet packet;
    if (n > 0) packet.text.assign(text, static_cast<size_t>(n));
    for (cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr; header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        std::memcpy(&packet.fd, CMSG_DATA(header), sizeof(int));
    }
    return packet;
  }
}

sockaddr_un Abstract(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(),
              std::min(name.size(), sizeof(address.sun_path) - 1));
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Status SameUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return Status::Unavailable(Errno("SO_PEERCRED"));
  if (peer.uid != geteuid())
    return Status::InvalidArgument("a process of user " + std::to_string(peer.uid) + " knocked");
  return Status::Ok();
}

}  // namespace

NodeLink::NodeLink(std::shared_ptr<SharedSegment> segment, std::vector<int> members, int local_rank)
    : segment_(std::move(segment)), members_(std::move(members)), local_rank_(local_rank) {
  segment_->rank(local_rank_)
      .state.store(static_cast<uint32_t>(RankState::kJoined), std::memory_order_release);
}

void NodeLink::StopWatching() {
  if (!watch_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_fd_, &one, sizeof(one));
  watch_.join();
}

NodeLink::~NodeLink() {
  StopWatching();
  if (stop_fd_ >= 0) close(stop_fd_);
  for (const auto& [fd, rank] : peers_) close(fd);
}

Result<std::unique_ptr<NodeLink>> NodeLink::MeetThroughLauncher(
    std::shared_ptr<LauncherSocket> launcher, std::vector<int> members, int local_rank,
    int generation, const SegmentShape& shape, std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  std::shared_ptr<SharedSegment> segment;
  if (local_rank == 0) {
    HORON_ASSIGN(segment, SharedSegment::Create(shape));
    HORON_TRY(SendPacket(
        launcher->fd, "segment " + std::to_string(generation) + " " + std::to_string(shape.bytes()),
        segment->fd()));
  }
  std::vector<Packet> kept;
  {
    MutexLock lock(launcher->mutex);
    kept = std::exchange(launcher->kept, {});
  }
  while (!segment) {
    Packet packet;
    if (!kept.empty()) {
      packet = kept.back();
      kept.pop_back();
    } else {
      HORON_ASSIGN(packet, ReceivePacket(launcher->fd, until));
      if (packet.text.empty()) return Status::Unavailable("the launcher is gone");
    }
    int got = 0;
    if (packet.fd >= 0 && std::sscanf(packet.text.c_str(), "segment %d", &got) == 1 &&
        got == generation) {
      HORON_ASSIGN(segment, SharedSegment::Map(packet.fd, shape));
      break;
    }
    if (packet.fd >= 0) close(packet.fd);
    if (packet.text.starts_with("dead ")) {
      return Status::Unavailable("while waiting for the other ranks: " +
                                 packet.text.substr(packet.text.find(' ', 5) + 1));
    }
  }
  auto link =
      std::unique_ptr<NodeLink>(new NodeLink(std::move(segment), std::move(members), local_rank));
  link->launcher_ = std::move(launcher);
  link->StartWatching();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  const Status all_there = link->WaitForAll(std::max(left, std::chrono::milliseconds{0}));
  if (!all_there.ok()) {  // whoever comes later must not count on this rank
    link->segment_->MarkDead(
        local_rank, "rank " + std::to_string(link->members_[static_cast<size_t>(local_rank)]) +
                        " gave up waiting in init");
    return all_there;
  }
  return link;
}

Result<NodeLink::Listener> NodeLink::Listen() {
  unsigned char random[16];
  if (getrandom(random, sizeof(random), 0) != sizeof(random))
    return Status::Unavailable(Errno("getrandom"));
  Listener listener;
  listener.name = "horon-";
  for (unsigned char byte : random) {
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", byte);
    listener.name += hex;
  }
  listener.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = Abstract(listener.name, &length);
  if (listener.fd < 0 ||
      bind(listener.fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.fd, 1024) != 0) {
    return Status::Unavailable(Errno("cannot listen for the node's other ranks"));
  }
  return listener;
}

Result<std::unique_ptr<NodeLink>> NodeLink::MeetThroughSocket(
    Listener listener, const std::string& name, std::vector<int> members, int local_rank,
    const SegmentShape& shape, std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  const int size = static_cast<int>(members.size());
  if (local_rank != 0) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    const sockaddr_un address = Abstract(name, &length);
    if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      return Status::Unavailable(Errno("cannot reach the node's first rank"));
    }
    HORON_TRY(SameUser(fd));
    HORON_TRY(SendPacket(fd, "hello " + std::to_string(local_rank), -1));
    HORON_ASSIGN(const Packet packet, ReceivePacket(fd, until));
    if (packet.fd < 0) return Status::Unavailable("the node's first rank sent no segment");
    HORON_ASSIGN(std::shared_ptr<SharedSegment> segment, SharedSegment::Map(packet.fd, shape));
    auto link =
        std::unique_ptr<NodeLink>(new NodeLink(std::move(segment), std::move(members), local_rank));
    link->peers_.emplace_back(fd, 0);
    link->StartWatching();
    return link;
  }
  HORON_ASSIGN(std::shared_ptr<SharedSegment> segment, SharedSegment::Create(shape));
  auto link =
      std::unique_ptr<NodeLink>(new NodeLink(std::move(segment), std::move(members), local_rank));
  while (static_cast<int>(link->peers_.size()) < size - 1) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waiting{listener.fd, POLLIN, 0};
    if (poll(&waiting, 1, left > 0 ? static_cast<int>(left) : 0) <= 0) {
      if (errno == EINTR && left > 0) continue;
      return Status::Unavailable("not all ranks of this node came in time (HORON_START_TIMEOUT)");
    }
    const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const Result<Packet> hello =
        SameUser(fd).ok() ? ReceivePacket(fd, until) : Result<Packet>(Status::Ok());
    int who = 0;
    if (!hello.ok() || std::sscanf(hello.value().text.c_str(), "hello %d", &who) != 1 || who < 1 ||
        who >= size) {
      close(fd);  // not one of us
      continue;
    }
    HORON_TRY(SendPacket(fd, "segment", link->segment_->fd()));
    link->peers_.emplace_back(fd, who);
  }
  close(listener.fd);
  link->StartWatching();
  return link;
}

// Everyone must have mapped the segment before anyone relies on it: a rank that leaves at once
// would otherwise take the launcher's relay down before the others have it.
Status NodeLink::WaitForAll(std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  Doorbell& bell = segment_->rank(local_rank_).bell;
  for (size_t i = 0; i < members_.size(); ++i) segment_->rank(static_cast<int>(i)).bell.Ring();
  for (;;) {
    const uint32_t ticket = bell.Announce(Doorbell::kBackground);
    int missing = -1;
    for (size_t i = 0; i < members_.size() && missing < 0; ++i) {
      const auto state = static_cast<RankState>(
          segment_->rank(static_cast<int>(i)).state.load(std::memory_order_acquire));
      if (state == RankState::kDead) {
        bell.Awake();
        return Status::Unavailable(std::string("while waiting for the other ranks: ") +
                                   segment_->rank(static_cast<int>(i)).death);
      }
      if (state == RankState::kAbsent) missing = members_[i];
    }
    if (missing < 0 || Clock::now() >= until) {
      bell.Awake();
      if (missing < 0) return Status::Ok();
      return Status::Unavailable("rank " + std::to_string(missing) +
                                 " did not call init in time (HORON_START_TIMEOUT)");
    }
    bell.Sleep(ticket, Doorbell::kBackground,
               std::min<std::chrono::nanoseconds>(until - Clock::now(), std::chrono::seconds(1)));
  }
}

void NodeLink::StartWatching() {
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  watch_ = std::thread([this] { Watch(); });
}

void NodeLink::Watch() {
  pthread_setname_np(pthread_self(), "horon-watch");
  std::vector<pollfd> waiting{{stop_fd_, POLLIN, 0}};
  if (launcher_) waiting.push_back({launcher_->fd, POLLIN, 0});
  for (const auto& [fd, rank] : peers_) waiting.push_back({fd, POLLIN, 0});
  for (;;) {
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    if (waiting[0].revents != 0) return;
    for (size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      waiting[i].revents = 0;
      if (launcher_) {
        if (!HearLauncher()) waiting[i].fd = -1;
        continue;
      }
      const int local = peers_[i - 1].second;
      const auto packet = ReceivePacket(waiting[i].fd, Clock::now());
      if (packet.ok() && !packet.value().text.empty()) continue;
      waiting[i].fd = -1;
      segment_->MarkDead(
          local, "rank " + std::to_string(members_[static_cast<size_t>(local)]) +
                     " ended without leaving the job (killed, or it exited without shutdown)");
    }
  }
}

// Whether there is more to hear.
bool NodeLink::HearLauncher() {
  const auto packet = ReceivePacket(launcher_->fd, Clock::now());
  if (!packet.ok()) return true;
  if (packet.value().fd >= 0) {
    MutexLock lock(launcher_->mutex);
    launcher_->kept.push_back(packet.value());
    return true;
  }
  const std::string& text = packet.value().text;
  if (text.empty()) {
    for (size_t i = 0; i < members_.size(); ++i) {
      if (static_cast<int>(i) != local_rank_)
        segment_->MarkDead(static_cast<int>(i), "horonrun, which started this job, is gone");
    }
    return false;
  }
  int rank = -1, at = 0;
  if (std::sscanf(text.c_str(), "dead %d %n", &rank, &at) != 1) return true;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == rank)
      segment_->MarkDead(static_cast<int>(i), text.substr(static_cast<size_t>(at)));
  }
  return true;
}

void NodeLink::SayBye() {
  segment_->MarkLeft(local_rank_);
  StopWatching();  // what comes from now on is for the next init
  if (launcher_) {
    const Status sent = SendPacket(launcher_->fd, "bye", -1);
    (void)sent;  // a launcher that is gone needs no goodbye
  }
}

}  // namespace horon
