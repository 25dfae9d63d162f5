#include <algorithm>
#include <deque>

#include "test/mpi/mpi_world.h"
#include "test/support/catch.h"

namespace horon::test {
namespace {

TEST_CASE("a cancelled receive takes nothing, and the message goes to the next", "[mpi]") {
  Wire wire;
  for (const int64_t pieces : {1, 3}) {
    std::vector<std::byte> untouched(900, std::byte{0x77}), theirs(900);
    Transfer cancelled, receive, send;
    REQUIRE(Receive(*wire, cancelled, Previous(), 44, Cut(untouched, pieces)).ok());
    {
      Transfer dropped;  // cancels itself
      REQUIRE(Receive(*wire, dropped, Previous(), 44, Cut(untouched, pieces)).ok());
    }
    cancelled.Cancel();
    CHECK(cancelled.done);
    CHECK(cancelled.transport == nullptr);
    CHECK(cancelled.status.code() == Code::kAborted);
    REQUIRE(Meet());
    auto mine = Pattern(900, World().rank());
    REQUIRE(Send(*wire, send, Next(), 44, {Whole(mine)}).ok());
    REQUIRE(Receive(*wire, receive, Previous(), 44, {Whole(theirs)}).ok());
    REQUIRE(Drive(*wire, [&] { return send.done && receive.done; }));
    CHECK(theirs == Pattern(900, Previous()));
    CHECK(untouched == std::vector<std::byte>(900, std::byte{0x77}));
  }
}

TEST_CASE("cancelling among many leaves the others alone", "[mpi]") {
  Wire wire;
  constexpr int kMessages = 20;
  std::deque<std::vector<std::byte>> in, out;
  std::deque<Transfer> receives(kMessages), sends(kMessages);
  for (int i = 0; i < kMessages; ++i) {
    in.emplace_back(100);
    const Tag tag = 200 + static_cast<Tag>(i);
    REQUIRE(
        Receive(*wire, receives[static_cast<size_t>(i)], Previous(), tag, {Whole(in.back())}).ok());
  }
  for (int i = 0; i < kMessages; i += 3) receives[static_cast<size_t>(i)].Cancel();
  REQUIRE(Meet());
  for (int i = 0; i < kMessages; ++i) {
    out.push_back(Pattern(100, World().rank(), i));
    if (i % 3 == 0) continue;
    const Tag tag = 200 + static_cast<Tag>(i);
    REQUIRE(Send(*wire, sends[static_cast<size_t>(i)], Next(), tag, {Whole(out.back())}).ok());
  }
  REQUIRE(Drive(*wire, [&] {
    return std::all_of(receives.begin(), receives.end(), [](const Transfer& t) { return t.done; });
  }));
  for (int i = 0; i < kMessages; ++i) {
    const auto& bytes = in[static_cast<size_t>(i)];
    CHECK(
        (i % 3 == 0 ? bytes == std::vector<std::byte>(100) : bytes == Pattern(100, Previous(), i)));
  }
  REQUIRE(Drive(*wire, [&] {
    return std::all_of(sends.begin(), sends.end(), [](const Transfer& t) { return t.done; });
  }));
}

TEST_CASE("a cancelled send of packed spans lets go of the caller's memory at once", "[mpi]") {
  Wire wire;
  constexpr int64_t kBytes = 200 << 10;  // too large to leave before its receive is posted
  auto mine = Pattern(kBytes, World().rank());
  Transfer send, receive;
  REQUIRE(Send(*wire, send, Next(), 45, Cut(mine, 10)).ok());
  const auto start = std::chrono::steady_clock::now();
  send.Cancel();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds{1});
  CHECK(send.done);
  std::fill(mine.begin(), mine.end(), std::byte{0});
  REQUIRE(Meet());
  // MPI cannot take a send back; what arrives is what was sent.
  std::vector<std::byte> theirs(static_cast<size_t>(kBytes));
  REQUIRE(Receive(*wire, receive, Previous(), 45, {Whole(theirs)}).ok());
  REQUIRE(Drive(*wire, [&] { return receive.done; }));
  CHECK(theirs == Pattern(kBytes, Previous()));
  // The peer may still be fetching from this rank.
  bool met = false;
  Transfer token_out, token_in;
  REQUIRE(Receive(*wire, token_in, Previous(), 46, {}).ok());
  REQUIRE(Send(*wire, token_out, Next(), 46, {}).ok());
  met = Drive(*wire, [&] { return token_in.done && token_out.done; });
  CHECK(met);
  CHECK(Meet());
}

TEST_CASE("cancelling a send that nobody takes is bounded", "[mpi]") {
  if (World().size() == 1) return;
  const std::unique_ptr<MpiWorld> another = OpenAnotherWorld();
  REQUIRE(another != nullptr);
  Counters counters;
  const auto transport = another->MakeTransport(counters, false);
  auto mine = Pattern(8 << 20, World().rank());
  std::deque<Transfer> sends(3);
  if (World().rank() == 0) {
    for (Transfer& send : sends) REQUIRE(Send(*transport, send, 1, 47, {Whole(mine)}).ok());
    const auto start = std::chrono::steady_clock::now();
    for (Transfer& send : sends) send.Cancel();
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds{4});
    CHECK(std::all_of(sends.begin(), sends.end(), [](const Transfer& t) { return t.done; }));
  }
  // Take them after all, so that MPI is through with the memory before it goes.
  std::deque<std::vector<std::byte>> in;
  std::deque<Transfer> receives;
  if (World().rank() == 1) {
    for (int i = 0; i < 3; ++i) {
      in.emplace_back(8 << 20);
      REQUIRE(Receive(*transport, receives.emplace_back(), 0, 47, {Whole(in.back())}).ok());
    }
    REQUIRE(Drive(*transport, [&] {
      return std::all_of(receives.begin(), receives.end(),
                         [](const Transfer& t) { return t.done; });
    }));
  }
  CHECK(Meet());
}

}  // namespace
}  // namespace horon::test
