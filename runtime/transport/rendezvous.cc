#include "runtime/transport/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "runtime/base/system_error.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string Errno(const char* what) { return std::string(what) + ": " + SystemError(errno); }

milliseconds Left(Clock::time_point until) {
  return std::max(std::chrono::duration_cast<milliseconds>(until - Clock::now()), milliseconds{0});
}

void Join(SharedSegment& segment, int local_rank) {
  segment.rank(local_rank)
      .state.store(static_cast<uint32_t>(RankState::kJoined), std::memory_order_release);
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

// A packet that an earlier init's watch had received, else the next one.
Result<Packet> NextPacket(LauncherSocket& launcher, Clock::time_point until) {
  {
    MutexLock lock(launcher.mutex);
    if (!launcher.kept.empty()) {
      Packet packet = launcher.kept.back();
      launcher.kept.pop_back();
      return packet;
    }
  }
  return ReceivePacket(launcher.fd, until);
}

Result<std::shared_ptr<SharedSegment>> TakeFromLauncher(LauncherSocket& launcher, int generation,
                                                        const SegmentShape& shape,
                                                        Clock::time_point until) {
  for (;;) {
    HORON_ASSIGN(const Packet packet, NextPacket(launcher, until));
    if (packet.text.empty()) return Status::Unavailable("the launcher is gone");
    int got = 0;
    if (packet.fd >= 0 && std::sscanf(packet.text.c_str(), "segment %d", &got) == 1 &&
        got == generation) {
      return SharedSegment::Map(packet.fd, shape);
    }
    if (packet.fd >= 0) close(packet.fd);
    if (packet.text.starts_with("dead ")) {
      return Status::Unavailable("while waiting for the other ranks: " +
                                 packet.text.substr(packet.text.find(' ', 5) + 1));
    }
  }
}

Result<Meeting> Knock(const std::string& name, int local_rank, const SegmentShape& shape,
                      Clock::time_point until) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = Abstract(name, &length);
  Meeting meeting;
  meeting.peers.emplace_back(fd, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return Status::Unavailable(Errno("cannot reach the node's first rank"));
  HORON_TRY(SameUser(fd));
  HORON_TRY(SendPacket(fd, "hello " + std::to_string(local_rank), -1));
  HORON_ASSIGN(const Packet packet, ReceivePacket(fd, until));
  if (packet.fd < 0) return Status::Unavailable("the node's first rank sent no segment");
  HORON_ASSIGN(meeting.segment, SharedSegment::Map(packet.fd, shape));
  return meeting;
}

// Local rank of whoever knocked; -1 if it is not one of us.
int Welcome(int fd, int local_size, Clock::time_point until) {
  if (!SameUser(fd).ok()) return -1;
  const Result<Packet> hello = ReceivePacket(fd, until);
  int who = -1;
  if (!hello.ok() || std::sscanf(hello.value().text.c_str(), "hello %d", &who) != 1) return -1;
  return who >= 1 && who < local_size ? who : -1;
}

Result<Meeting> WelcomeAll(Listener listener, int local_size, const SegmentShape& shape,
                           Clock::time_point until) {
  Meeting meeting;
  HORON_ASSIGN(meeting.segment, SharedSegment::Create(shape));
  while (static_cast<int>(meeting.peers.size()) < local_size - 1) {
    pollfd waiting{listener.fd, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(Left(until).count())) <= 0) {
      if (errno == EINTR && Left(until).count() > 0) continue;
      return Status::Unavailable("not all ranks of this node came in time (HORON_START_TIMEOUT)");
    }
    const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const int who = Welcome(fd, local_size, until);
    if (who < 0) {
      close(fd);
      continue;
    }
    meeting.peers.emplace_back(fd, who);
    HORON_TRY(SendPacket(fd, "segment", meeting.segment->fd()));
  }
  close(listener.fd);
  return meeting;
}

}  // namespace

Result<std::shared_ptr<SharedSegment>> MeetThroughLauncher(LauncherSocket& launcher, int local_rank,
                                                           int generation,
                                                           const SegmentShape& shape,
                                                           milliseconds limit) {
  std::shared_ptr<SharedSegment> segment;
  if (local_rank == 0) {
    HORON_ASSIGN(segment, SharedSegment::Create(shape));
    HORON_TRY(SendPacket(
        launcher.fd, "segment " + std::to_string(generation) + " " + std::to_string(shape.bytes()),
        segment->fd()));
  } else {
    HORON_ASSIGN(segment, TakeFromLauncher(launcher, generation, shape, Clock::now() + limit));
  }
  Join(*segment, local_rank);
  return segment;
}

Status WaitForAll(SharedSegment& segment, const std::vector<int>& members, int local_rank,
                  milliseconds limit) {
  const auto until = Clock::now() + limit;
  Doorbell& bell = segment.rank(local_rank).bell;
  for (size_t i = 0; i < members.size(); ++i) segment.rank(static_cast<int>(i)).bell.Ring();
  for (;;) {
    const uint32_t ticket = bell.Announce(Doorbell::kBackground);
    int missing = -1;
    Status status;
    for (size_t i = 0; i < members.size() && missing < 0; ++i) {
      const RankWords& words = segment.rank(static_cast<int>(i));
      const auto state = static_cast<RankState>(words.state.load(std::memory_order_acquire));
      if (state == RankState::kAbsent) missing = members[i];
    }
    const int dead = segment.FirstDead();
    std::string death = dead < 0 ? "" : segment.rank(dead).death;
    if (dead >= 0) {
      status = Status::Unavailable("while waiting for the other ranks: " + death);
    } else if (missing >= 0 && Clock::now() >= until) {
      status = Status::Unavailable("rank " + std::to_string(missing) +
                                   " did not call init in time (HORON_START_TIMEOUT)");
    }
    if (missing >= 0 && status.ok()) {
      bell.Sleep(ticket, Doorbell::kBackground,
                 std::min<std::chrono::nanoseconds>(Left(until), std::chrono::seconds(1)));
      continue;
    }
    bell.Awake();
    if (!status.ok()) {  // whoever comes later must not count on this rank, and hears the cause
      const int me = members[static_cast<size_t>(local_rank)];
      if (death.empty()) death = "rank " + std::to_string(me) + " gave up waiting in init";
      segment.MarkDead(local_rank, death);
    }
    return status;
  }
}

Result<Listener> Listen() {
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

Result<Meeting> MeetThroughSocket(Listener listener, const std::string& name, int local_size,
                                  int local_rank, const SegmentShape& shape, milliseconds limit) {
  const auto until = Clock::now() + limit;
  Result<Meeting> meeting = local_rank == 0 ? WelcomeAll(listener, local_size, shape, until)
                                            : Knock(name, local_rank, shape, until);
  if (meeting.ok()) Join(*meeting.value().segment, local_rank);
  return meeting;
}

}  // namespace horon
