#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <future>

#include "runtime/transport/rendezvous.h"
#include "test/support/catch.h"

namespace horon::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uid_t kNobody = 65534;

SegmentShape Shape(int ranks) { return SegmentShape::For(ranks, 0, 4096); }

Result<Meeting> Meet(const Listener& listener, const std::string& name, int ranks, int local_rank,
                     milliseconds limit = seconds{30}) {
  return MeetThroughSocket(listener, name, ranks, local_rank, Shape(ranks), limit);
}

std::future<Result<Meeting>> MeetAside(const std::string& name, int ranks, int local_rank) {
  return std::async(std::launch::async, [=] { return Meet(Listener(), name, ranks, local_rank); });
}

// Who found the name and knocks at the first rank.
class Stranger {
 public:
  Stranger(const std::string& name, const std::string& words)
      : socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const size_t length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
    knocked_ = connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address),
                       static_cast<socklen_t>(length)) == 0 &&
               SendPacket(socket_.get(), words, -1).ok();
  }
  bool knocked() const { return knocked_; }
  // What it is answered; empty: the door is shut.
  std::string Answer() const {
    const auto packet =
        ReceivePacket(socket_.get(), std::chrono::steady_clock::now() + seconds{30});
    if (packet.ok() && packet.value().fd >= 0) close(packet.value().fd);
    return packet.ok() ? packet.value().text : packet.status().message();
  }

 private:
  Descriptor socket_;
  bool knocked_;
};

// Another process of user kNobody that runs `life`, which has one end of a pair of sockets; the
// other is `end()`.
class Foreigner {
 public:
  explicit Foreigner(const std::function<bool(int)>& life) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    pid_ = fork();
    close(ends[pid_ == 0 ? 0 : 1]);
    if (pid_ == 0) _exit(setuid(kNobody) == 0 && life(ends[1]) ? 0 : 1);
    end_ = Descriptor(ends[0]);
  }
  int pid() const { return pid_; }
  std::string Heard() const {
    return ReceivePacket(end_.get(), std::chrono::steady_clock::now() + seconds{30}).value().text;
  }
  // Lets it end; whether its life was as expected.
  bool Content() {
    end_ = Descriptor();
    int status = 0;
    return waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
  Descriptor end_;
};

bool MayBeOthers() {
  if (geteuid() == 0) return true;
  WARN("skipped: only root can start a process of another user");
  return false;
}

std::string Refused(int pid) {
  return "process " + std::to_string(pid) + " of user " + std::to_string(kNobody) +
         " was refused, because this rank runs as user 0";
}

// Knocks as rank 1, says so, and wants to be sent away.
Foreigner KnockAsOther(const std::string& name) {
  return Foreigner([&name](int end) {
    const Stranger stranger(name, "hello 1");
    return stranger.knocked() && SendPacket(end, "knocked", -1).ok() && stranger.Answer().empty();
  });
}

std::ptrdiff_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST_CASE("a process of another user is refused, and the ranks meet all the same") {
  if (!MayBeOthers()) return;
  const Listener listener = Listen().value();
  Foreigner other = KnockAsOther(listener.name);
  REQUIRE(other.Heard() == "knocked");
  auto second = MeetAside(listener.name, 2, 1);
  const auto first = Meet(listener, listener.name, 2, 0);
  REQUIRE(first.ok());
  CHECK(second.get().ok());
  REQUIRE(first.value().peers.size() == 1);
  CHECK(first.value().peers[0].second == 1);
  CHECK(other.Content());
}

TEST_CASE("who was refused is named when a rank does not come") {
  if (!MayBeOthers()) return;
  const Listener listener = Listen().value();
  Foreigner other = KnockAsOther(listener.name);
  REQUIRE(other.Heard() == "knocked");
  const auto first = Meet(listener, listener.name, 2, 0, milliseconds{1});
  REQUIRE_FALSE(first.ok());
  CHECK(first.status().message() ==
        "not all ranks of this node came in time (HORON_START_TIMEOUT); " + Refused(other.pid()));
  CHECK(other.Content());
}

TEST_CASE("a rank takes no segment from a process of another user") {
  if (!MayBeOthers()) return;
  Foreigner other([](int end) {
    const auto listener = Listen();
    return listener.ok() && SendPacket(end, listener.value().name, -1).ok() &&
           ReceivePacket(end, std::chrono::steady_clock::now() + seconds{30}).ok();
  });
  const auto second = Meet(Listener(), other.Heard(), 2, 1);
  REQUIRE_FALSE(second.ok());
  CHECK(second.status().message() == Refused(other.pid()));
  CHECK(other.Content());
}

TEST_CASE("who is no rank is refused, and the ranks meet all the same") {
  for (const char* words : {"hello 0", "hello 2", "hello -1", "hello", "segment 1 4096"}) {
    INFO(words);
    const Listener listener = Listen().value();
    const Stranger stranger(listener.name, words);
    REQUIRE(stranger.knocked());
    auto second = MeetAside(listener.name, 2, 1);
    CHECK(Meet(listener, listener.name, 2, 0).ok());
    CHECK(second.get().ok());
    CHECK(stranger.Answer().empty());
  }
}

TEST_CASE("a rank that came already is refused when another says that it is the same") {
  const Listener listener = Listen().value();
  const Stranger one(listener.name, "hello 1"), again(listener.name, "hello 1");
  auto third = MeetAside(listener.name, 3, 2);
  CHECK(Meet(listener, listener.name, 3, 0).ok());
  CHECK(third.get().ok());
  CHECK(one.Answer() == "segment");
  CHECK(again.Answer().empty());
}

TEST_CASE("ranks that do not meet keep no descriptor") {
  const auto before = OpenDescriptors();
  {
    const Listener listener = Listen().value();
    const Stranger one(listener.name, "hello 1");
    CHECK_FALSE(Meet(listener, listener.name, 3, 0, milliseconds{1}).ok());  // rank 2 is missing
    CHECK_FALSE(Meet(Listener(), listener.name, 3, 2, milliseconds{1}).ok());
    CHECK_FALSE(Meet(Listener(), "horon-nobody", 2, 1).ok());
  }
  CHECK(OpenDescriptors() == before);
}

}  // namespace
}  // namespace horon::test
