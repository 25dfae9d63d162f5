#include <malloc.h>

#include <string>

#include "test/mpi/mpi_world.h"
#include "test/support/catch.h"

namespace horon::test {
namespace {

using std::chrono::milliseconds;

TEST_CASE("only a transport that is told so gives MPI the memory of GPUs", "[mpi]") {
  Counters counters;
  REQUIRE(!World().MakeTransport(counters, false)->reads_gpus());
  REQUIRE(World().MakeTransport(counters, false, kMpiPiece, true)->reads_gpus());
  const std::string library = World().library_version();
  if (library.starts_with("Open MPI v5.0.11")) REQUIRE(!World().cuda_aware());  // the PyPI package
}

TEST_CASE("ranks of one machine are one node", "[mpi]") {
  const auto nodes = World().NodeOf({milliseconds{20000}});
  REQUIRE(nodes.ok());
  CHECK(nodes.value() == std::vector<int>(static_cast<size_t>(World().size()), 0));
}

TEST_CASE("an exchange brings everybody's text, by rank", "[mpi]") {
  const auto text = [](int rank) {
    return std::string(static_cast<size_t>(rank * 1000), '\0') + std::to_string(rank);
  };
  for (int round = 0; round < 3; ++round) {
    const auto texts = World().Exchange(text(World().rank()), {milliseconds{20000}});
    REQUIRE(texts.ok());
    REQUIRE(texts.value().size() == static_cast<size_t>(World().size()));
    for (int r = 0; r < World().size(); ++r)
      CHECK(texts.value()[static_cast<size_t>(r)] == text(r));
  }
  const auto nothing = World().Exchange("", {milliseconds{20000}});
  REQUIRE(nothing.ok());
  CHECK(nothing.value() == std::vector<std::string>(static_cast<size_t>(World().size())));
}

TEST_CASE("an exchange that not all ranks join gives up in time", "[mpi]") {
  const std::unique_ptr<MpiWorld> another = OpenAnotherWorld();
  REQUIRE(another != nullptr);
  if (World().size() > 1 && World().rank() == 0) {
    const auto start = std::chrono::steady_clock::now();
    const auto texts = another->Exchange("alone", {milliseconds{100}});
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds{5});
    REQUIRE_FALSE(texts.ok());
    CHECK(texts.status().code() == Code::kUnavailable);
    CHECK(texts.status().message().find("100 ms") != std::string::npos);
  }
  CHECK(Meet());
}

TEST_CASE("a second world is independent of the first", "[mpi]") {
  const std::unique_ptr<MpiWorld> another = OpenAnotherWorld();
  REQUIRE(another != nullptr);
  CHECK(another->rank() == World().rank());
  CHECK(another->size() == World().size());
  CHECK(another->multiple());
  CHECK(another->serialized());
  CHECK_FALSE(another->library_version().empty());
  // The same peer and tag in both worlds: neither takes the other's message.
  Counters counters;
  const auto one = World().MakeTransport(counters, false);
  const auto two = another->MakeTransport(counters, false);
  auto mine = Pattern(100, World().rank(), 1), other = Pattern(100, World().rank(), 2);
  std::vector<std::byte> from_one(100), from_two(100);
  Transfer sends[2], receives[2];
  REQUIRE(Send(*two, sends[1], Next(), 9, {Whole(other)}).ok());
  REQUIRE(Send(*one, sends[0], Next(), 9, {Whole(mine)}).ok());
  REQUIRE(Receive(*one, receives[0], Previous(), 9, {Whole(from_one)}).ok());
  REQUIRE(Receive(*two, receives[1], Previous(), 9, {Whole(from_two)}).ok());
  REQUIRE(Drive(*one, [&] { return receives[0].done && sends[0].done; }));
  REQUIRE(Drive(*two, [&] { return receives[1].done && sends[1].done; }));
  CHECK(from_one == Pattern(100, Previous(), 1));
  CHECK(from_two == Pattern(100, Previous(), 2));
  CHECK(Meet());
}

// Opens a world, sends the next rank a message of so many bytes that it does not receive, and
// leaves.
void SendAndLeave(size_t bytes) {
  const std::unique_ptr<MpiWorld> life = OpenAnotherWorld();
  REQUIRE(life != nullptr);
  Counters counters;
  const auto transport = life->MakeTransport(counters, false);
  Transfer send;
  std::vector<std::byte> stale(bytes, std::byte{0x55});
  REQUIRE(Send(*transport, send, Next(), 9, {Whole(stale)}).ok());
  if (!send.done) transport->Cancel(send);
}

void PassInANewWorld() {
  const std::unique_ptr<MpiWorld> life = OpenAnotherWorld();
  REQUIRE(life != nullptr);
  Counters counters;
  const auto transport = life->MakeTransport(counters, false);
  Transfer send, receive;
  auto mine = Pattern(100, World().rank());
  std::vector<std::byte> theirs(100);
  REQUIRE(Receive(*transport, receive, Previous(), 9, {Whole(theirs)}).ok());
  REQUIRE(Send(*transport, send, Next(), 9, {Whole(mine)}).ok());
  REQUIRE(Drive(*transport, [&] { return send.done && receive.done; }));
  CHECK(receive.status.ok());
  CHECK(theirs == Pattern(100, Previous()));
}

TEST_CASE("what was sent in a world that was left is not received in the next", "[mpi]") {
  for (int round = 0; round < 5; ++round) {
    SendAndLeave(100);
    PassInANewWorld();
  }
  CHECK(Meet());
}

// MPI keeps such a message, which its receiver would have to fetch.
TEST_CASE("a world with a message that could not be taken back is not used again", "[mpi]") {
  SendAndLeave(World().rank() == 0 ? 5 << 20 : 100);
  PassInANewWorld();
  CHECK(Meet());
}

TEST_CASE("worlds that come and go keep no memory", "[mpi]") {
  const auto held = [] {
    const struct mallinfo2 heap = mallinfo2();
    return static_cast<double>(heap.uordblks + heap.hblkhd);
  };
  const auto live = [] {
    SendAndLeave(100);
    PassInANewWorld();
  };
  constexpr int kLives = 50;
  for (int i = 0; i < kLives; ++i) live();
  const double before = held();
  for (int i = 0; i < kLives; ++i) live();
  const double kib_a_life = (held() - before) / 1024 / kLives;
  CHECK(kib_a_life < 1);  // a communicator is 9
  CHECK(Meet());
}

// The last one: this process opens no other world.
TEST_CASE("after a failure that left a tensor with MPI no other world is opened", "[mpi]") {
  std::unique_ptr<MpiWorld> life = OpenAnotherWorld();
  REQUIRE(life != nullptr);
  Counters counters;
  auto transport = life->MakeTransport(counters, false);
  auto* theirs = new std::vector<std::byte>(100);  // MPI's from now on
  Transfer receive;
  REQUIRE(Receive(*transport, receive, Previous(), 9, {Whole(*theirs)}).ok());
  transport->Abandon();
  transport.reset();
  life.reset();
  CHECK(OpenAnotherWorld() == nullptr);
  CHECK(Meet());
}

}  // namespace
}  // namespace horon::test
