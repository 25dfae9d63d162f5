// Messages through rings: thread ranks, so that TSan sees the protocol.
#include "runtime/transport/shm.h"

#include <deque>
#include <random>
#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

struct Pair {
  explicit Pair(int n = 2) {
    segment = SharedSegment::InProcess(SegmentShape::For(n, 64 << 10, 4096)).value();
    for (int r = 0; r < n; ++r) {
      std::vector<int> members;
      for (int m = 0; m < n; ++m) members.push_back(10 + m);  // global ranks are not local ranks
      ranks.push_back(std::make_unique<ShmTransport>(segment, members, r, "inproc"));
    }
  }
  std::shared_ptr<SharedSegment> segment;
  std::vector<std::unique_ptr<ShmTransport>> ranks;
};

Transfer& Set(Transfer& t, Transfer::Direction direction, int peer, Tag tag, void* data,
              int64_t bytes) {
  t.direction = direction;
  t.peer = peer;
  t.tag = tag;
  t.spans = {{static_cast<std::byte*>(data), bytes}};
  return t;
}
constexpr auto kSend = Transfer::Direction::kSend;
constexpr auto kReceive = Transfer::Direction::kReceive;

void Finish(Pair& pair, std::initializer_list<Transfer*> transfers) {
  for (int i = 0; i < 100000; ++i) {
    bool done = true;
    for (Transfer* t : transfers) done = done && t->done;
    if (done) return;
    for (auto& rank : pair.ranks) REQUIRE(rank->Progress().ok());
  }
  FAIL("transfers did not finish");
}

TEST_CASE("messages of every size arrive, asked for before or after") {
  for (const int64_t bytes : {0, 1, 15, 16 * 1024, 16 * 1024 + 1, 64 * 1024, 1000003}) {
    for (const bool early : {true, false}) {
      Pair pair;
      std::vector<std::byte> out(static_cast<size_t>(bytes)), in(static_cast<size_t>(bytes));
      std::mt19937 random(1);
      for (auto& b : out) b = static_cast<std::byte>(random());
      Transfer send, receive;
      if (early) REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), bytes)).ok());
      REQUIRE(pair.ranks[0]->Post(Set(send, kSend, 11, 5, out.data(), bytes)).ok());
      for (int i = 0; i < 3; ++i) REQUIRE(pair.ranks[1]->Progress().ok());
      if (!early)
        REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), bytes)).ok());
      Finish(pair, {&send, &receive});
      CHECK(receive.status.ok());
      CHECK(receive.bytes == bytes);
      CHECK(in == out);
    }
  }
}

TEST_CASE("an unasked large message does not stop those behind it") {
  Pair pair;
  std::vector<std::byte> big(1 << 20, std::byte{1}), big_in(1 << 20), small(8, std::byte{2}),
      small_in(8);
  Transfer s1, s2, r1, r2;
  REQUIRE(pair.ranks[0]->Post(Set(s1, kSend, 11, 1, big.data(), 1 << 20)).ok());
  REQUIRE(pair.ranks[0]->Post(Set(s2, kSend, 11, 2, small.data(), 8)).ok());
  REQUIRE(pair.ranks[1]->Post(Set(r2, kReceive, 10, 2, small_in.data(), 8)).ok());
  Finish(pair, {&s2, &r2});
  CHECK_FALSE(s1.done);
  REQUIRE(pair.ranks[1]->Post(Set(r1, kReceive, 10, 1, big_in.data(), 1 << 20)).ok());
  Finish(pair, {&s1, &r1});
  CHECK(big_in == big);
}

TEST_CASE("equal tags match in the order of posting, large and small mixed") {
  Pair pair;
  std::deque<Transfer> transfers;
  std::vector<std::vector<int>> out, in;
  for (int i = 0; i < 40; ++i) {
    const size_t n = i % 3 == 0 ? 20000 : 3;
    out.emplace_back(n, i);
    in.emplace_back(20000, -1);
  }
  for (int i = 0; i < 40; ++i) {
    const size_t at = static_cast<size_t>(i);
    REQUIRE(pair.ranks[0]
                ->Post(Set(transfers.emplace_back(), kSend, 11, 9, out[at].data(),
                           static_cast<int64_t>(out[at].size() * 4)))
                .ok());
    REQUIRE(pair.ranks[1]
                ->Post(Set(transfers.emplace_back(), kReceive, 10, 9, in[at].data(), 80000))
                .ok());
  }
  for (Transfer& t : transfers) Finish(pair, {&t});
  for (int i = 0; i < 40; ++i) CHECK(in[static_cast<size_t>(i)][0] == i);
}

TEST_CASE("a message that is too long fails the receive and frees the sender") {
  for (const int64_t bytes : {100, 100000}) {
    Pair pair;
    std::vector<std::byte> out(static_cast<size_t>(bytes)), in(10);
    Transfer send, receive;
    REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), 10)).ok());
    REQUIRE(pair.ranks[0]->Post(Set(send, kSend, 11, 5, out.data(), bytes)).ok());
    Finish(pair, {&send, &receive});
    CHECK(receive.status.code() == Code::kInternal);
  }
}

TEST_CASE("cancelled transfers are not touched again and the pair goes on") {
  Pair pair;
  std::vector<std::byte> big(1 << 20, std::byte{1}), in(1 << 20);
  {
    Transfer send, receive;
    REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), 1 << 20)).ok());
    REQUIRE(pair.ranks[0]->Post(Set(send, kSend, 11, 5, big.data(), 1 << 20)).ok());
    REQUIRE(pair.ranks[1]->Progress().ok());
    REQUIRE(pair.ranks[0]->Progress().ok());  // in the middle of streaming
  }
  Transfer send, receive;
  std::vector<std::byte> small(8, std::byte{7}), small_in(8);
  REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 6, small_in.data(), 8)).ok());
  REQUIRE(pair.ranks[0]->Post(Set(send, kSend, 11, 6, small.data(), 8)).ok());
  Finish(pair, {&send, &receive});
  CHECK(small_in == small);
}

TEST_CASE("a death finishes every transfer with its sentence") {
  Pair pair(3);
  std::vector<std::byte> in(8);
  Transfer receive;
  REQUIRE(pair.ranks[0]->Post(Set(receive, kReceive, 12, 5, in.data(), 8)).ok());
  pair.segment->MarkDead(1, "rank 11 was killed by signal 11 (SIGSEGV)");
  CHECK(pair.ranks[0]->Progress().status().code() == Code::kUnavailable);
  CHECK(receive.done);
  CHECK(receive.status.message() == "rank 11 was killed by signal 11 (SIGSEGV)");
  Transfer later;
  CHECK_FALSE(pair.ranks[0]->Post(Set(later, kReceive, 12, 5, in.data(), 8)).ok());
}

TEST_CASE("two threads exchange 300 random messages each way") {
  Pair pair;
  const auto run = [&](int me) {
    std::mt19937 random(3);  // the same on both: sizes agree
    for (int i = 0; i < 300; ++i) {
      const int64_t bytes = static_cast<int64_t>(random() % (i % 5 == 0 ? 200000 : 2000));
      std::vector<std::byte> out(static_cast<size_t>(bytes), static_cast<std::byte>(i + me)),
          in(static_cast<size_t>(bytes));
      Transfer send, receive;
      ShmTransport& t = *pair.ranks[static_cast<size_t>(me)];
      if (!t.Post(Set(receive, kReceive, 11 - me, 1, in.data(), bytes)).ok()) std::abort();
      if (!t.Post(Set(send, kSend, 11 - me, 1, out.data(), bytes)).ok()) std::abort();
      while (!send.done || !receive.done) {
        if (!t.Progress().ok()) std::abort();
      }
      for (std::byte b : in) {
        if (b != static_cast<std::byte>(i + 1 - me)) std::abort();
      }
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

}  // namespace
}  // namespace horon
