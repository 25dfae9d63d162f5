#include "runtime/transport/rendezvous.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test/support/catch.h"

namespace horon::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

const std::vector<int> kRanks{0, 1, 2};

std::shared_ptr<SharedSegment> SegmentOfThree() {
  return SharedSegment::InProcess(SegmentShape::For(3, 0, 4096)).value();
}

void Join(SharedSegment& segment, int rank) {
  segment.rank(rank).state.store(static_cast<uint32_t>(RankState::kJoined));
}

TEST_CASE("packets of words are read whole or not at all") {
  const auto dead = ReadTold("dead -1 the host is gone", "dead");
  REQUIRE(dead);
  CHECK(dead->number == -1);
  CHECK(dead->rest == "the host is gone");
  const auto hello = ReadTold("hello 12", "hello");
  REQUIRE(hello);
  CHECK((hello->number == 12 && hello->rest.empty()));
  for (const char* none : {"", "dead", "dead ", "dead x", "dead 1x", "deadly 1", "dead 99999999999",
                           "dead  1", " dead 1", "segment 1"}) {
    CAPTURE(none);
    CHECK_FALSE(ReadTold(none, "dead"));
  }
}

TEST_CASE("who gives up in init passes the cause on") {
  const auto segment = SegmentOfThree();
  Join(*segment, 0);
  Join(*segment, 1);
  segment->MarkDead(2, "rank 2 was killed");
  // Rank 0 gives up first, so rank 1 meets that, not rank 2, first.
  for (const int rank : {0, 1}) {
    const Status status = WaitForAll(*segment, kRanks, rank, seconds{10});
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message() == "while waiting for the other ranks: rank 2 was killed");
  }
}

TEST_CASE("the first death is the cause, whatever the order of ranks") {
  const auto segment = SegmentOfThree();
  for (const int rank : {0, 1, 2}) Join(*segment, rank);
  segment->MarkDead(2, "rank 2 was killed");
  segment->MarkDead(0, "rank 0 exited with code 3");
  CHECK(segment->Deaths(1).message() == "rank 2 was killed");
  CHECK(WaitForAll(*segment, kRanks, 1, seconds{10}).message() ==
        "while waiting for the other ranks: rank 2 was killed");
}

TEST_CASE("a rank that never comes is named by the one whose time is over") {
  const auto segment = SegmentOfThree();
  Join(*segment, 0);
  Join(*segment, 1);
  const Status first = WaitForAll(*segment, kRanks, 0, milliseconds{1});
  CHECK(first.message() == "rank 2 did not call init in time (HORON_START_TIMEOUT)");
  const Status second = WaitForAll(*segment, kRanks, 1, seconds{10});
  CHECK(second.message() == "while waiting for the other ranks: rank 0 gave up waiting in init");
}

// Takes all descriptors that are left while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{64, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd; (fd = dup(0)) >= 0;) taken_.push_back(fd);
  }
  ~NoDescriptors() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST_CASE("the last words of a peer that left packets unread are heard") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  REQUIRE(SendPacket(ends[1], "never read", -1).ok());
  REQUIRE(SendPacket(ends[0], "dead 1", -1).ok());
  close(ends[0]);
  const auto words = ReceivePacket(ends[1], steady_clock::now() + seconds{10});
  CHECK(words.value().text == "dead 1");
  const auto end = ReceivePacket(ends[1], steady_clock::now() + seconds{10});
  CHECK(end.value().text.empty());
  close(ends[1]);
}

TEST_CASE("a descriptor that cannot be taken over is an error that says which limit to raise") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  REQUIRE(SendPacket(ends[0], "segment 1 4096", ends[0]).ok());
  {
    const NoDescriptors none;
    const auto packet = ReceivePacket(ends[1], steady_clock::now() + seconds{10});
    REQUIRE_FALSE(packet.ok());
    CHECK(packet.status().message().find("raise ulimit -n") != std::string::npos);
    const auto segment = SharedSegment::Create(SegmentShape::For(3, 0, 4096));
    REQUIRE_FALSE(segment.ok());
    CHECK(segment.status().message().find("raise ulimit -n") != std::string::npos);
  }
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace horon::test
