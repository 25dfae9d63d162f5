// Messages through rings: thread ranks, so that TSan sees the protocol.
#include "runtime/transport/shm.h"

#include <deque>
#include <random>
#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

struct Pair {
  explicit Pair(int n = 2, bool direct = true) {
    segment = SharedSegment::InProcess(SegmentShape::For(n, 64 << 10, 4096)).value();
    for (int r = 0; r < n; ++r) {
      std::vector<int> members;
      for (int m = 0; m < n; ++m) members.push_back(10 + m);  // global ranks are not local ranks
      ranks.push_back(std::make_unique<ShmTransport>(segment, members, r, "inproc", direct, &read));
    }
  }
  std::shared_ptr<SharedSegment> segment;
  std::vector<std::unique_ptr<ShmTransport>> ranks;
  Counter read;
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
  for (const int64_t bytes : {0, 1, 15, 16 * 1024, 16 * 1024 + 1, 64 * 1024, 256 * 1024, 1000003}) {
    for (const int way : {0, 1, 2, 3}) {
      const bool early = way % 2 == 0, direct = way < 2;
      Pair pair(2, direct);
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
      CHECK(pair.read.value() == (direct && bytes >= ShmPeer::kShownBytes ? bytes : 0));
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

TEST_CASE("who has sent what nobody waits for is known, large or small, until it is received") {
  for (const int64_t bytes : {0, 100, 1 << 20}) {
    Pair pair(3);
    std::vector<std::byte> out(static_cast<size_t>(bytes)), in(static_cast<size_t>(bytes));
    Transfer send, receive;
    REQUIRE(pair.ranks[2]->Post(Set(send, kSend, 10, 5, out.data(), bytes)).ok());
    REQUIRE(pair.ranks[0]->Progress().ok());
    CHECK(pair.ranks[0]->Sender(5) == 12);
    CHECK(pair.ranks[0]->Sender(6) == -1);
    CHECK(pair.ranks[1]->Sender(5) == -1);
    REQUIRE(pair.ranks[0]->Post(Set(receive, kReceive, 12, 5, in.data(), bytes)).ok());
    CHECK(pair.ranks[0]->Sender(5) == -1);
    Finish(pair, {&send, &receive});
  }
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

// A message in `pieces` spans of one size.
Transfer& Scatter(Transfer& t, int64_t pieces) {
  const Span whole = t.spans[0];
  t.spans.clear();
  for (int64_t i = 0; i < pieces; ++i)
    t.spans.push_back({whole.data + i * (whole.bytes / pieces), whole.bytes / pieces});
  return t;
}

TEST_CASE("what lies in many pieces is read, or streamed, into other pieces") {
  constexpr int64_t kBytes = 3 << 18;
  for (const auto& [from, to, direct] :
       {std::tuple{1, 1024, true}, {256, 3, true}, {96, 64, true}, {257, 1, false}}) {
    const int64_t bytes = from == 257 ? 257 * 3000 : kBytes;
    Pair pair;
    std::vector<std::byte> out(static_cast<size_t>(bytes)), in(static_cast<size_t>(bytes));
    std::mt19937 random(2);
    for (auto& b : out) b = static_cast<std::byte>(random());
    Transfer send, receive;
    REQUIRE(pair.ranks[1]->Post(Scatter(Set(receive, kReceive, 10, 5, in.data(), bytes), to)).ok());
    REQUIRE(pair.ranks[0]->Post(Scatter(Set(send, kSend, 11, 5, out.data(), bytes), from)).ok());
    Finish(pair, {&send, &receive});
    CHECK(in == out);
    CHECK(pair.read.value() == (direct ? bytes : 0));
  }
}

TEST_CASE("where a rank's memory cannot be read its messages are streamed") {
  Pair pair;
  pair.segment->rank(0).proof ^= 1;  // another process, for all we know
  std::vector<std::byte> out(1 << 20, std::byte{3}), in(1 << 20);
  Transfer send, receive;
  REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), 1 << 20)).ok());
  REQUIRE(pair.ranks[0]->Post(Set(send, kSend, 11, 5, out.data(), 1 << 20)).ok());
  Finish(pair, {&send, &receive});
  CHECK(in == out);
  CHECK(pair.read.value() == 0);
}

TEST_CASE("memory that is not there is no death: the message is asked for again") {
  Pair pair;
  std::vector<std::byte> out(1 << 20, std::byte{3}), in(1 << 20);
  Transfer send, receive;
  REQUIRE(pair.ranks[0]->Post(Set(send, kSend, 11, 5, nullptr, 1 << 20)).ok());
  send.spans[0].data = out.data();  // what was shown lies nowhere
  REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), 1 << 20)).ok());
  Finish(pair, {&send, &receive});
  CHECK(in == out);
  CHECK(pair.read.value() == 0);
}

TEST_CASE("a message taken back while it is read does not arrive; another one does") {
  Pair pair;
  std::vector<std::byte> big(2 << 20, std::byte{1}), in(2 << 20), other(1 << 20, std::byte{9}),
      other_in(1 << 20);
  auto send = std::make_unique<Transfer>();
  Transfer receive, send_other, receive_other;
  REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), 2 << 20)).ok());
  REQUIRE(pair.ranks[1]->Post(Set(receive_other, kReceive, 10, 6, other_in.data(), 1 << 20)).ok());
  REQUIRE(pair.ranks[0]->Post(Set(*send, kSend, 11, 5, big.data(), 2 << 20)).ok());
  REQUIRE(pair.ranks[0]->Post(Set(send_other, kSend, 11, 6, other.data(), 1 << 20)).ok());
  REQUIRE(pair.ranks[1]->Progress().ok());  // the first piece
  CHECK_FALSE(receive.done);
  CHECK(in[0] == std::byte{1});
  send.reset();
  std::fill(big.begin(), big.end(), std::byte{2});
  Finish(pair, {&receive, &send_other, &receive_other});
  CHECK(receive.status.code() == Code::kAborted);
  CHECK(receive_other.status.ok());
  CHECK(other_in == other);
}

TEST_CASE("a receive taken back while it reads frees the sender") {
  Pair pair;
  std::vector<std::byte> big(2 << 20, std::byte{1}), in(2 << 20);
  Transfer send;
  {
    Transfer receive;
    REQUIRE(pair.ranks[1]->Post(Set(receive, kReceive, 10, 5, in.data(), 2 << 20)).ok());
    REQUIRE(pair.ranks[0]->Post(Set(send, kSend, 11, 5, big.data(), 2 << 20)).ok());
    REQUIRE(pair.ranks[1]->Progress().ok());
  }
  in.assign(in.size(), std::byte{0});
  Finish(pair, {&send});
  CHECK(send.status.ok());
  CHECK(in[0] == std::byte{0});
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
      const int64_t bytes = static_cast<int64_t>(random() % (i % 5 == 0 ? 600000 : 2000));
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
