#include "runtime/transport/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "runtime/base/look.h"
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
  if (peer.uid == geteuid()) return Status::Ok();
  return Status::InvalidArgument(
      "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid) +
      " was refused, because this rank runs as user " + std::to_string(geteuid()));
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
    const auto segment = ReadTold(packet.text, "segment");
    if (packet.fd >= 0 && segment && segment->number == generation)
      return SharedSegment::Map(packet.fd, shape);
    if (packet.fd >= 0) close(packet.fd);
    if (const auto dead = ReadTold(packet.text, "dead"))
      return Status::Unavailable("while waiting for the other ranks: " + dead->rest);
  }
}

Result<Meeting> Knock(const std::string& name, int local_rank, const SegmentShape& shape,
                      Clock::time_point until) {
  Descriptor first(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const int fd = first.get();
  socklen_t length = 0;
  const sockaddr_un address = Abstract(name, &length);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return Status::Unavailable(Errno("cannot reach the node's first rank"));
  HORON_TRY(SameUser(fd));
  HORON_TRY(SendPacket(fd, "hello " + std::to_string(local_rank), -1));
  HORON_ASSIGN(const Packet packet, ReceivePacket(fd, until));
  if (packet.fd < 0) return Status::Unavailable("the node's first rank sent no segment");
  Meeting meeting;
  HORON_ASSIGN(meeting.segment, SharedSegment::Map(packet.fd, shape));
  meeting.peers.emplace_back(std::move(first), 0);
  return meeting;
}

// Local rank of whoever knocked, if it is one of us that has not come yet.
Result<int> Welcome(int fd, const Meeting& meeting, int local_size, Clock::time_point until) {
  HORON_TRY(SameUser(fd));
  HORON_ASSIGN(const Packet hello, ReceivePacket(fd, until));
  if (hello.fd >= 0) close(hello.fd);
  const auto told = ReadTold(hello.text, "hello");
  const int who = told ? told->number : -1;
  const bool here = std::any_of(meeting.peers.begin(), meeting.peers.end(),
                                [who](const auto& peer) { return peer.second == who; });
  if (who >= 1 && who < local_size && !here) return who;
  return Status::InvalidArgument("a process that is no rank of this job was refused");
}

// Whoever is refused keeps nobody from coming; it is named if a rank does not come. (A process of
// the same user that comes and says nothing does keep the others waiting, up to the same limit.)
Status NotAllCame(const Status& refused) {
  const std::string also = refused.ok() ? "" : "; " + refused.message();
  return Status::Unavailable("not all ranks of this node came in time (HORON_START_TIMEOUT)" +
                             also);
}

Result<Meeting> WelcomeAll(const Listener& listener, int local_size, const SegmentShape& shape,
                           Clock::time_point until) {
  Meeting meeting;
  Status refused;
  HORON_ASSIGN(meeting.segment, SharedSegment::Create(shape));
  while (static_cast<int>(meeting.peers.size()) < local_size - 1) {
    pollfd waiting{listener.socket.get(), POLLIN, 0};
    const auto limit = std::chrono::ceil<milliseconds>(UntilLook(Left(until)));
    if (poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) {
      HORON_TRY(GoOn());
      if (Left(until).count() > 0) continue;
      return NotAllCame(refused);
    }
    Descriptor peer(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() < 0) continue;
    const Result<int> who = Welcome(peer.get(), meeting, local_size, until);
    refused = who.ok() ? refused : who.status();
    if (!who.ok()) continue;
    HORON_TRY(SendPacket(peer.get(), "segment", meeting.segment->fd()));
    meeting.peers.emplace_back(std::move(peer), who.value());
  }
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
    if (missing >= 0 && status.ok()) status = GoOn();
    if (missing >= 0 && status.ok()) {
      bell.Sleep(
          ticket, Doorbell::kBackground,
          UntilLook(std::min<std::chrono::nanoseconds>(Left(until), std::chrono::seconds(1))));
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
  listener.socket = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const int fd = listener.socket.get();
  socklen_t length = 0;
  const sockaddr_un address = Abstract(listener.name, &length);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(fd, 1024) != 0) {
    return Status::Unavailable(Errno("cannot listen for the node's other ranks"));
  }
  return listener;
}

Result<Meeting> MeetThroughSocket(const Listener& listener, const std::string& name, int local_size,
                                  int local_rank, const SegmentShape& shape, milliseconds limit) {
  const auto until = Clock::now() + limit;
  Result<Meeting> meeting = local_rank == 0 ? WelcomeAll(listener, local_size, shape, until)
                                            : Knock(name, local_rank, shape, until);
  if (meeting.ok()) Join(*meeting.value().segment, local_rank);
  return meeting;
}

}  // namespace horon
