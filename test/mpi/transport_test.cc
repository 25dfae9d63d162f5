#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "test/mpi/mpi_world.h"
#include "test/support/catch.h"

namespace horon::test {
namespace {

// Sends `bytes` to the next rank as `out` spans, receives from the previous in `in` spans.
void Pass(Wire& wire, int64_t bytes, int64_t out, int64_t in) {
  INFO(bytes << " bytes, " << out << " spans to " << in);
  auto mine = Pattern(bytes, World().rank());
  std::vector<std::byte> theirs(static_cast<size_t>(bytes), std::byte{0x77});
  Transfer send, receive;
  REQUIRE(Receive(*wire, receive, Previous(), 40, Cut(theirs, in)).ok());
  REQUIRE(Send(*wire, send, Next(), 40, Cut(mine, out)).ok());
  REQUIRE(Drive(*wire, [&] { return send.done && receive.done; }));
  CHECK(send.status.ok());
  CHECK(receive.status.ok());
  CHECK(send.bytes == bytes);
  CHECK(receive.bytes == bytes);
  CHECK(send.transport == nullptr);
  CHECK(receive.transport == nullptr);
  CHECK(theirs == Pattern(bytes, Previous()));
}

constexpr int64_t kSizes[] = {0, 1, 3, 1000, 4095, 4096, 65537, (256 << 10) + 1, (5 << 20) + 1};

TEST_CASE("messages of all sizes arrive", "[mpi]") {
  Wire wire;
  for (const int64_t bytes : kSizes) Pass(wire, bytes, 1, 1);
}

TEST_CASE("messages are gathered from spans and scattered into others", "[mpi]") {
  Wire wire;
  for (const int64_t bytes : kSizes) {
    Pass(wire, bytes, 7, 1);
    Pass(wire, bytes, 1, 5);
    Pass(wire, bytes, 3, 100);
  }
}

// As MPI, which counts in int, gets what is longer than 1 GiB. More than is packed.
TEST_CASE("a message longer than a piece is still one message", "[mpi]") {
  Wire wire(1000);
  for (const int64_t bytes : {300000, 300001, 1 << 20}) {
    Pass(wire, bytes, 1, 1);
    Pass(wire, bytes, 7, 1);
    Pass(wire, bytes, 1, 3);
  }
  CHECK(wire.counters["mpi.messages"].value() == 9);
  CHECK(wire.counters["mpi.bytes"].value() == 3 * (300000 + 300001 + (1 << 20)));
}

TEST_CASE("a receive in pieces takes a shorter message", "[mpi]") {
  Wire wire(1000);
  auto mine = Pattern(299950, World().rank());
  std::vector<std::byte> theirs(400000, std::byte{0x77});
  Transfer send, receive;
  REQUIRE(Receive(*wire, receive, Previous(), 41, {Whole(theirs)}).ok());
  REQUIRE(Send(*wire, send, Next(), 41, {Whole(mine)}).ok());
  REQUIRE(Drive(*wire, [&] { return send.done && receive.done; }));
  CHECK(receive.status.ok());
  CHECK(receive.bytes == 299950);
  theirs.resize(299951);
  CHECK(theirs.back() == std::byte{0x77});
  theirs.pop_back();
  CHECK(theirs == Pattern(299950, Previous()));
}

TEST_CASE("a receive takes a shorter message than its spans hold", "[mpi]") {
  Wire wire;
  const int64_t room = 1 << 20;
  for (const int64_t bytes : {int64_t{0}, int64_t{10}, int64_t{700001}}) {
    for (const int64_t pieces : {1, 4}) {
      INFO(bytes << " bytes into " << pieces << " spans");
      auto mine = Pattern(bytes, World().rank());
      std::vector<std::byte> theirs(static_cast<size_t>(room), std::byte{0x77});
      Transfer send, receive;
      REQUIRE(Receive(*wire, receive, Previous(), 41, Cut(theirs, pieces)).ok());
      REQUIRE(Send(*wire, send, Next(), 41, {Whole(mine)}).ok());
      REQUIRE(Drive(*wire, [&] { return send.done && receive.done; }));
      CHECK(receive.status.ok());
      CHECK(receive.bytes == bytes);
      const auto end = theirs.begin() + bytes;
      CHECK(std::vector<std::byte>(theirs.begin(), end) == Pattern(bytes, Previous()));
      CHECK(std::all_of(end, theirs.end(), [](std::byte b) { return b == std::byte{0x77}; }));
    }
  }
}

TEST_CASE("a longer message than expected fails the receive alone", "[mpi]") {
  // Open MPI cuts a message to oneself short without a word; Horon sends itself nothing over MPI.
  if (World().size() == 1) return;
  Wire wire;
  auto mine = Pattern(64, World().rank());
  std::vector<std::byte> theirs(32);
  Transfer send, receive;
  REQUIRE(Receive(*wire, receive, Previous(), 42, {Whole(theirs)}).ok());
  REQUIRE(Send(*wire, send, Next(), 42, {Whole(mine)}).ok());
  REQUIRE(Drive(*wire, [&] { return send.done && receive.done; }));
  CHECK(receive.status.code() == Code::kInternal);
  CHECK(receive.status.message().find("rank " + std::to_string(Previous())) != std::string::npos);
  Pass(wire, 1000, 1, 1);
}

TEST_CASE("messages of one tag arrive in the order of posting, whatever other tags do", "[mpi]") {
  Wire wire;
  constexpr int kMessages = 60;
  std::deque<std::vector<std::byte>> out, in;
  std::deque<Transfer> sends, receives;
  const auto size = [](int i) {
    return int64_t{1} << (i % 20);
  };  // small ones must not overtake large ones
  for (int i = 0; i < kMessages; ++i) {
    out.push_back(Pattern(size(i), World().rank(), i));
    REQUIRE(
        Send(*wire, sends.emplace_back(), Next(), 50 + static_cast<Tag>(i % 2), {Whole(out.back())})
            .ok());
  }
  // The odd tag first: its receives are posted while the even messages wait.
  for (const int parity : {1, 0}) {
    for (int i = parity; i < kMessages; i += 2) {
      in.emplace_back(static_cast<size_t>(size(i)));
      REQUIRE(Receive(*wire, receives.emplace_back(), Previous(), 50 + static_cast<Tag>(parity),
                      {Whole(in.back())})
                  .ok());
    }
  }
  const auto all_done = [](std::deque<Transfer>& transfers) {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const Transfer& t) { return t.done; });
  };
  REQUIRE(Drive(*wire, [&] { return all_done(sends) && all_done(receives); }));
  for (int k = 0; k < kMessages; ++k) {
    const int i = k < kMessages / 2 ? 2 * k + 1 : 2 * (k - kMessages / 2);
    CHECK(in[static_cast<size_t>(k)] == Pattern(size(i), Previous(), i));
  }
}

TEST_CASE("a message may come before its receive is posted", "[mpi]") {
  Wire wire;
  auto mine = Pattern(2000, World().rank());
  std::vector<std::byte> theirs(2000);
  Transfer send, receive;
  REQUIRE(Send(*wire, send, Next(), 43, Cut(mine, 3)).ok());
  REQUIRE(Meet());
  REQUIRE(wire.transport->Progress().ok());
  REQUIRE(Receive(*wire, receive, Previous(), 43, Cut(theirs, 2)).ok());
  REQUIRE(Drive(*wire, [&] { return send.done && receive.done; }));
  CHECK(theirs == Pattern(2000, Previous()));
}

TEST_CASE("who has sent what nobody waits for is known until it is received", "[mpi]") {
  Wire wire;
  auto mine = Pattern(300, World().rank());
  std::vector<std::byte> theirs(300);
  Transfer send, receive;
  CHECK(wire.transport->Sender(44) == -1);
  REQUIRE(Meet());
  REQUIRE(Send(*wire, send, Next(), 44, Cut(mine, 1)).ok());
  REQUIRE(Drive(*wire, [&] { return wire.transport->Sender(44) >= 0; }));
  CHECK(wire.transport->Sender(44) == Previous());
  CHECK(wire.transport->Sender(45) == -1);
  REQUIRE(Receive(*wire, receive, Previous(), 44, Cut(theirs, 1)).ok());
  REQUIRE(Drive(*wire, [&] { return send.done && receive.done; }));
  CHECK(wire.transport->Sender(44) == -1);
  CHECK(theirs == Pattern(300, Previous()));
}

TEST_CASE("messages and bytes are counted where they are sent", "[mpi]") {
  Wire wire;
  Pass(wire, 1000, 3, 2);
  Pass(wire, 24, 1, 1);
  CHECK(wire.counters["mpi.messages"].value() == 2);
  CHECK(wire.counters["mpi.bytes"].value() == 1024);
  CHECK(wire.counters["mpi.collectives"].value() == 0);
}

TEST_CASE("the transport says what it is", "[mpi]") {
  Wire wire;
  CHECK(wire.transport->name() == "mpi");
  CHECK(wire.transport->Reaches(0));
  CHECK_FALSE(wire.transport->Reaches(World().size()));
  CHECK_FALSE(wire.transport->Reaches(-1));
  CHECK(wire.transport->poll_interval() > std::chrono::microseconds{0});
}

// What arrives later finds memory that is still there, and nobody who looks.
TEST_CASE("after a failure MPI keeps what it has and is not called any more", "[mpi]") {
  const std::unique_ptr<MpiWorld> life = OpenAnotherWorld();
  REQUIRE(life != nullptr);
  Counters counters;
  const auto transport = life->MakeTransport(counters, false);
  std::vector<std::byte> first(100), second(100);  // received through a buffer of the transport's
  Transfer receive, late;
  REQUIRE(Receive(*transport, receive, Previous(), 9, {Whole(first), Whole(second)}).ok());
  transport->Abandon();
  CHECK(receive.done);
  CHECK(receive.status.code() == Code::kUnavailable);
  CHECK_FALSE(transport->Progress().ok());
  CHECK_FALSE(Send(*transport, late, Next(), 9, {Whole(first)}).ok());
  CHECK(Meet());
}

// The last rank dies once all others have told it to: then they have all that they need of it.
constexpr Tag kTold = 8;

[[noreturn]] void DieWhenTold(Transport& wire) {
  std::vector<std::byte> word(8);
  for (int from = 0; from < World().size() - 1; ++from) {
    Transfer told;
    REQUIRE(Receive(wire, told, from, kTold, {Whole(word)}).ok());
    REQUIRE(Drive(wire, [&] { return told.done; }));
  }
  std::raise(SIGKILL);
  std::abort();
}

void Tell(Transport& wire, int victim) {
  std::vector<std::byte> word(8);
  Transfer tells;
  REQUIRE(Send(wire, tells, victim, kTold, {Whole(word)}).ok());
  REQUIRE(Drive(wire, [&] { return tells.done; }));
}

// Hidden: the last rank dies of it. CTest runs it alone, over TCP, and looks for the last line.
TEST_CASE("sends to a rank that MPI knows to be dead are refused", "[.death]") {
  std::vector<std::unique_ptr<MpiWorld>> worlds;
  for (int i = 0; i < 4; ++i) REQUIRE(worlds.emplace_back(OpenAnotherWorld()) != nullptr);
  Wire wire;
  Pass(wire, 1 << 20, 1, 1);  // connects
  const int victim = World().size() - 1;
  std::vector<std::byte> bytes(128 << 10);
  Transfer receive;
  if (World().rank() == victim) DieWhenTold(*wire);
  Tell(*wire, victim);
  REQUIRE(Receive(*wire, receive, victim, 9, {Whole(bytes)}).ok());
  CHECK_FALSE(Drive(*wire, [&] { return receive.done; }));
  CHECK(receive.status.code() == Code::kUnavailable);
  Counters counters;
  int refused = 0;
  for (const auto& world : worlds) {  // a transport that has failed does not call MPI again
    Transfer send;
    const auto transport = world->MakeTransport(counters, false);
    const Status status = Send(*transport, send, victim, 9, {Whole(bytes)});
    // Not what MPI_Isend says: it must not be called.
    refused += status.code() == Code::kUnavailable &&
               status.message() == "rank " + std::to_string(victim) +
                                       " cannot be reached over MPI any more: it is dead";
  }
  CHECK(refused == 4);
  if (refused == 4) std::printf("\nall sends were refused\n");
  std::fflush(stdout);
  std::_Exit(0);  // MPI's own end would wait for the dead
}

// Of three ranks the last one dies, once the others have told it to; what those do then, each with
// a receive from the other that outlives the job. Everything is required: the line at the end says
// that all was as it should be.
struct Survivor {
  const int victim = 2, other = 1 - World().rank();
  Wire wire;
  std::vector<std::byte> arrived = std::vector<std::byte>(600'000), lost = arrived;
  Transfer receive, in_vain;

  // `early`: the receive in vain is posted before the victim dies, in the middle of sending what
  // rank 0 waits for; and rank 0's from the other one is done, and not posted again.
  explicit Survivor(bool early = false) {
    if (early) lost.resize(64 << 20);
    Pass(wire, 1000, 1, 1);  // connects
    if (World().rank() == victim) {
      if (early) REQUIRE(Send(*wire, in_vain, 0, 10, {Whole(lost)}).ok());
      DieWhenTold(*wire);
    }
    receive.outlives = true;
    REQUIRE(Receive(*wire, receive, other, 9, {Whole(arrived)}).ok());
    const bool first = World().rank() == 0;
    if (early) {
      in_vain.outlives = !first;
      if (first)
        REQUIRE(Drive(*wire, [&] { return receive.done && (*wire).Sender(10) == victim; }));
      REQUIRE(Receive(*wire, in_vain, victim, 10, {Whole(lost)}).ok());
    }
    Tell(*wire, victim);
    if (!early || first) return;
    // Only now, so that the victim dies as soon as rank 0 has begun to receive from it.
    std::vector<std::byte> word(8);
    Transfer heard;
    REQUIRE(Send(*wire, heard, other, 9, {Whole(word)}).ok());
    REQUIRE(Drive(*wire, [&] { return heard.done; }));
  }
  // Waits in vain for what the dead one was to send.
  void HearOfIt(bool outlives) {
    in_vain.outlives = outlives;
    const Status posted = Receive(*wire, in_vain, victim, 9, {Whole(lost)});
    REQUIRE_FALSE((posted.ok() && Drive(*wire, [] { return false; })));
  }
  // Of two, one takes no part any more, and the other one hears that.
  void CheckEnd(bool leaves) {
    REQUIRE(Drive(*wire, [&] { return receive.done; }));
    REQUIRE(receive.status.code() == (leaves ? Code::kUnavailable : Code::kOk));
    REQUIRE(receive.bytes == 0);
    REQUIRE(wire.transport->OutlivesRanks() != leaves);
    REQUIRE(wire.transport->Progress().ok() != leaves);
    End();
  }
  [[noreturn]] static void End() {
    std::printf("\nrank %d is through\n", World().rank());
    std::fflush(stdout);
    std::_Exit(0);  // MPI's own end would wait for the dead
  }
};

TEST_CASE("after a death messages that outlive the job go on between the living", "[.survivors]") {
  Survivor me;
  Transport& wire = *me.wire;
  std::vector<std::byte> mine = Pattern(600'000, World().rank()), short_one(500, std::byte{1}),
                         untouched(500);
  Transfer taken_back, late, send, refused;
  REQUIRE(Receive(wire, taken_back, me.other, 10, {Whole(untouched)}).ok());
  me.HearOfIt(true);
  wire.Abandon();
  REQUIRE(wire.OutlivesRanks());
  REQUIRE(taken_back.status.code() == Code::kUnavailable);
  REQUIRE_FALSE(wire.Reaches(me.victim));
  REQUIRE(wire.Reaches(me.other));
  REQUIRE(Send(wire, refused, me.victim, 9, {Whole(short_one)}).code() == Code::kUnavailable);
  late.outlives = send.outlives = true;
  REQUIRE(Send(wire, send, me.other, 9, {Whole(mine)}).ok());
  REQUIRE(Drive(wire, [&] { return me.receive.done && send.done; }));
  REQUIRE(me.receive.status.ok());
  REQUIRE(me.arrived == Pattern(600'000, me.other));
  // So the other one has taken its receive back, and nobody takes the next one.
  REQUIRE(Send(wire, late, me.other, 10, {Whole(short_one)}).ok());
  REQUIRE(Receive(wire, me.receive, me.other, 9, {Whole(me.arrived)}).ok());
  REQUIRE(Send(wire, send, me.other, 9, {Whole(mine)}).ok());
  REQUIRE(Drive(wire, [&] { return me.receive.done && late.done && send.done; }));
  REQUIRE(untouched == std::vector<std::byte>(500));
  REQUIRE(Receive(wire, me.receive, me.other, 9, {Whole(me.arrived)}).ok());
  if (World().rank() == 0) wire.Leave();
  me.CheckEnd(World().rank() == 0);
}

// What was torn may still be written to, by any call of MPI. What this rank had on its way to the
// other one arrives, and behind it that nothing follows.
TEST_CASE("but not where a message of the dead was torn that does not outlive it", "[.torn]") {
  Survivor me;
  const bool torn = World().rank() == 0;
  std::vector<std::byte> words = Pattern(600'000, 0);
  std::deque<Transfer> last(2);
  for (Transfer& send : last) {
    send.outlives = true;
    if (torn) REQUIRE(Send(*me.wire, send, me.other, 9, {Whole(words)}).ok());
  }
  me.HearOfIt(!torn);
  me.wire.transport->Abandon();
  for (size_t i = 0; !torn && i < last.size(); ++i) {
    REQUIRE(Drive(*me.wire, [&] { return me.receive.done; }));
    REQUIRE(me.arrived == words);
    std::fill(me.arrived.begin(), me.arrived.end(), std::byte{0});
    REQUIRE(Receive(*me.wire, me.receive, me.other, 9, {Whole(me.arrived)}).ok());
  }
  me.CheckEnd(torn);
}

// Nor where it was taken back before this transport knew, and its memory has gone. The other one
// hears of that although nothing is expected of it at that moment.
TEST_CASE("nor where such a message was taken back before", "[.given_back]") {
  const auto world = OpenAnotherWorld();
  REQUIRE(world != nullptr);
  Survivor me(/*early=*/true);
  const bool torn = World().rank() == 0;
  Counters counters;
  const auto transport = world->MakeTransport(counters, false);
  std::vector<std::byte> word(8);
  Transfer probe;  // not `wire` hears first
  REQUIRE(Receive(*transport, probe, me.victim, 9, {Whole(word)}).ok());
  REQUIRE_FALSE(Drive(*transport, [] { return false; }));
  REQUIRE(probe.done);
  REQUIRE(probe.status.code() == Code::kUnavailable);
  Transport& wire = *me.wire;
  if (torn) {
    me.in_vain.Cancel();
    wire.Abandon();
    REQUIRE_FALSE(wire.OutlivesRanks());
    REQUIRE_FALSE(wire.Progress().ok());
    Survivor::End();
  }
  REQUIRE_FALSE(Drive(wire, [] { return false; }));
  wire.Abandon();
  me.CheckEnd(false);
}

}  // namespace
}  // namespace horon::test
