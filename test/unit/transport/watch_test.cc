#include "runtime/transport/watch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "test/support/catch.h"

namespace horon::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// A watch of rank 5, local rank 1 of the node {4, 5, 6}, with the far ends of its sockets.
struct Watched {
  explicit Watched(bool with_segment = true) {
    if (with_segment) segment = SharedSegment::InProcess(SegmentShape::For(3, 0, 4096)).value();
    for (int i = 0; segment && i < 3; ++i)
      segment->rank(i).state.store(static_cast<uint32_t>(RankState::kJoined));
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    launcher->fd = ends[0];
    launcher_end = ends[1];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    peer_end = ends[1];
    WatchParts parts{segment, {4, 5, 6}, 1, launcher, {}, losses, -1};
    parts.peers.emplace_back(ends[0], 0);
    watch = std::make_unique<Watch>(std::move(parts));
  }
  ~Watched() {
    watch.reset();
    for (int fd : {launcher->fd, launcher_end, peer_end})
      if (fd >= 0) close(fd);
  }
  void Say(const std::string& text) { REQUIRE(SendPacket(launcher_end, text, -1).ok()); }
  std::string Heard() {
    const auto packet = ReceivePacket(launcher_end, steady_clock::now() + seconds{10});
    REQUIRE(packet.ok());
    return packet.value().text;
  }
  // The bell is rung after the news is written, so this needs no polling.
  template <typename F>
  void Await(Doorbell& bell, F&& known) {
    const auto until = steady_clock::now() + seconds{10};
    while (steady_clock::now() < until) {
      const uint32_t ticket = bell.Announce(Doorbell::kBackground);
      if (known()) break;
      bell.Sleep(ticket, Doorbell::kBackground, seconds{1});
    }
    bell.Awake();
    REQUIRE(known());
  }
  Doorbell& bell() { return segment ? segment->rank(1).bell : losses->bell(); }

  std::shared_ptr<SharedSegment> segment;
  std::shared_ptr<Losses> losses = std::make_shared<Losses>();
  std::shared_ptr<LauncherSocket> launcher = std::make_shared<LauncherSocket>();
  int launcher_end = -1, peer_end = -1;
  std::unique_ptr<Watch> watch;
};

TEST_CASE("the launcher's word of a rank of this node goes into the segment") {
  Watched w;
  w.Say("dead 6 rank 6 was killed by signal 9 (SIGKILL)");
  w.Await(w.bell(), [&] { return !w.segment->Deaths(1).ok(); });
  CHECK(w.segment->Deaths(1).message() == "rank 6 was killed by signal 9 (SIGKILL)");
  CHECK(w.segment->rank(2).state.load() == static_cast<uint32_t>(RankState::kDead));
  CHECK_FALSE(w.losses->any());
}

TEST_CASE("the launcher's word of a rank elsewhere goes to the losses, the first one stays") {
  for (const bool with_segment : {true, false}) {
    Watched w(with_segment);
    w.Say("dead 9 rank 9 exited with code 7");
    w.Await(w.bell(), [&] { return w.losses->any(); });
    w.Say("dead 8 rank 8 exited with code 1");
    w.Say("dead");  // not understood, and no reason to stop
    w.Say("dead 6x");
    CHECK(w.losses->sentence() == "rank 9 exited with code 7");
    CHECK(w.losses->Has(9));
    w.Await(w.bell(), [&] { return w.losses->Has(8); });
    CHECK_FALSE(w.losses->Has(7));
    if (with_segment) CHECK(w.segment->Deaths(1).ok());
  }
}

TEST_CASE("a rank elsewhere that ends because one of this node failed is not taken for the cause") {
  Watched w;
  w.segment->MarkDead(0, "rank 4 raised ValueError");
  w.Say("dead 9 rank 9 exited with code 3");
  w.Await(w.bell(), [&] { return w.losses->any(); });
  CHECK(w.losses->sentence() == "rank 4 raised ValueError");
}

TEST_CASE("without the launcher nobody can be counted on") {
  Watched w;
  close(std::exchange(w.launcher_end, -1));
  w.Await(w.bell(), [&] { return w.losses->any(); });
  CHECK(w.losses->sentence() == "horonrun, which started this job, is gone");
  CHECK(w.losses->Has(7));
  CHECK(w.segment->Deaths(1).message() == w.losses->sentence());
  CHECK(w.segment->rank(1).state.load() == static_cast<uint32_t>(RankState::kJoined));
}

TEST_CASE("a peer whose socket ends without a goodbye is dead") {
  Watched w;
  close(std::exchange(w.peer_end, -1));
  w.Await(w.bell(), [&] { return !w.segment->Deaths(1).ok(); });
  CHECK(w.segment->Deaths(1).message().starts_with("rank 4 ended without leaving the job"));
}

TEST_CASE("what became of a peer is waited for when a launcher can say it") {
  Watched w;
  close(std::exchange(w.peer_end, -1));
  w.Say("dead 4 rank 4 was killed by signal 9 (SIGKILL)");
  w.Await(w.bell(), [&] { return !w.segment->Deaths(1).ok(); });
  CHECK(w.segment->Deaths(1).message() == "rank 4 was killed by signal 9 (SIGKILL)");
}

TEST_CASE("a rank says that it leaves, or why it fails") {
  Watched leaving;
  leaving.watch->Tell("joined");
  leaving.watch->SayBye();
  CHECK(leaving.Heard() == "joined");
  CHECK(leaving.Heard() == "bye");
  CHECK(leaving.segment->Deaths(0).ok());

  Watched failing;
  failing.watch->SayLost("raised ValueError: bad batch");
  CHECK(failing.Heard() == "raised ValueError: bad batch");
  CHECK(failing.segment->Deaths(0).message() == "rank 5 raised ValueError: bad batch");
  CHECK(failing.segment->Deaths(1).message().ends_with(": rank 5 raised ValueError: bad batch"));
}

TEST_CASE("a look that is wanted soon is made at once, and then as before") {
  Watched w;
  std::atomic<int> looks{0};
  w.watch->OnLook([&] {
    looks.fetch_add(1);
    w.bell().Ring();
    return std::chrono::milliseconds{60'000};
  });
  for (int i = 1; i <= 3; ++i) {
    w.watch->LookSoon();
    w.Await(w.bell(), [&] { return looks.load() == i; });
  }
  w.watch->OnLook(nullptr);
  CHECK(looks.load() == 3);
}

TEST_CASE("a segment that comes early is kept for the next init") {
  Watched w;
  const int fd = dup(0);
  REQUIRE(SendPacket(w.launcher_end, "segment 2 4096", fd).ok());
  close(fd);
  w.Say("dead 9 a packet after it");
  w.Await(w.bell(), [&] { return w.losses->any(); });
  MutexLock lock(w.launcher->mutex);
  REQUIRE(w.launcher->kept.size() == 1);
  CHECK(w.launcher->kept[0].text == "segment 2 4096");
  close(w.launcher->kept[0].fd);
}

}  // namespace
}  // namespace horon::test
