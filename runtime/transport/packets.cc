#include "runtime/transport/packets.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "runtime/base/look.h"
#include "runtime/base/system_error.h"
#include "runtime/base/utf8.h"

namespace horon {
namespace {

constexpr size_t kPacketBytes = 512;
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int));

int Milliseconds(std::chrono::nanoseconds time) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(time).count());
}

// The descriptor that came with a message; -1 if none did.
int DescriptorOf(msghdr& message) {
  int fd = -1;
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
      std::memcpy(&fd, CMSG_DATA(h), sizeof(int));
  }
  return fd;
}

}  // namespace

std::optional<Told> ReadTold(std::string_view text, std::string_view word) {
  if (!text.starts_with(word) || !text.substr(word.size()).starts_with(' ')) return std::nullopt;
  text.remove_prefix(word.size() + 1);
  Told told;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), told.number);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || !(text.empty() || text.starts_with(' '))) return std::nullopt;
  if (!text.empty()) told.rest = text.substr(1);
  return told;
}

Status SendPacket(int to, const std::string& text, int fd) {
  const std::string sent = ShortenedSentence(text, kPacketBytes);
  iovec iov{const_cast<char*>(sent.data()), sent.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[kControlBytes] = {};
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
  if (n >= 0) return Status::Ok();
  return Status::Unavailable("cannot send to the launcher or the node's other ranks: " +
                             SystemError(errno));
}

Result<Packet> ReceivePacket(int from, std::chrono::steady_clock::time_point until) {
  using Clock = std::chrono::steady_clock;
  for (;;) {
    const auto left = std::max<std::chrono::nanoseconds>(until - Clock::now(), {});
    pollfd waiting{from, POLLIN, 0};
    const int ready = poll(&waiting, 1, Milliseconds(UntilLook(left)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      HORON_TRY(GoOn());
      if (Clock::now() < until) continue;
    }
    if (ready <= 0) return Status::Unavailable("timed out (HORON_START_TIMEOUT)");
    char text[kPacketBytes];
    iovec iov{text, sizeof(text)};
    msghdr message{};
    alignas(cmsghdr) char control[kControlBytes];
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    // A peer that closed with packets unread: said once, before what it has sent.
    if (n < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    Packet packet;
    if (n <= 0) return packet;
    packet.text.assign(text, static_cast<size_t>(n));
    packet.fd = DescriptorOf(message);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {  // there was no room for the descriptor
      return Status::Unavailable("the node's shared memory could not be taken over: " +
                                 SystemError(EMFILE));
    }
    return packet;
  }
}

}  // namespace horon
