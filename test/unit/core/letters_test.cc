// Letters between ranks of different nodes, over a network in one thread.
#include "runtime/core/letters.h"

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/loop_transport.h"

namespace horon::test {
namespace {

using std::chrono::milliseconds;

std::vector<std::byte> Bytes(const std::string& text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Two nodes of two.
struct Job {
  explicit Job(uint64_t seed = 1) : world(Topology::Blocks(4, 2), seed) {
    for (int rank = 0; rank < 4; ++rank)
      letters.push_back(std::make_unique<Letters>(
          world.fabric(rank), [this](int other) { return gone.contains(other); }));
  }
  // All runtimes run cycles for a second.
  void Pass() {
    for (int i = 0; i < 40; ++i) {
      now += milliseconds{25};
      for (int rank = 0; rank < 4; ++rank) {
        world.net().Progress(rank);
        came += of(rank).Advance(now) ? 1 : 0;
      }
    }
  }
  Letters& of(int rank) { return *letters[static_cast<size_t>(rank)]; }

  LoopWorld world;
  std::set<int> gone;
  std::vector<std::unique_ptr<Letters>> letters;
  Letters::Clock::time_point now{milliseconds{1000}};
  int came = 0;
};

TEST_CASE("letters come to ranks of other nodes that do not expect them") {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Job job(seed);
    job.of(0).Send({{2, Bytes("to 2")}, {3, Bytes("to 3")}});
    job.of(1).Send({{2, Bytes("from 1")}});
    job.of(2).Send({{0, Bytes("to 0")}});
    job.Pass();
    CHECK(job.came == 4);
    std::set<std::pair<int, std::string>> got;
    for (const Letter& letter : job.of(2).Take()) got.emplace(letter.peer, Text(letter.bytes));
    CHECK(got == std::set<std::pair<int, std::string>>{{0, "to 2"}, {1, "from 1"}});
    CHECK(Text(job.of(3).Take().at(0).bytes) == "to 3");
    CHECK(job.of(0).Take().at(0).peer == 2);
    CHECK(job.of(0).Take().empty());
    CHECK(job.world.net().idle());
  }
}

TEST_CASE("where nobody writes nothing is sent, and nothing posted") {
  Job job;
  job.Pass();
  CHECK(job.came == 0);
  CHECK(job.world.net().idle());
  for (int rank = 0; rank < 4; ++rank) CHECK(job.world.net().messages_sent(rank) == 0);
}

TEST_CASE("who has left gets no letter, and nobody one that is too long") {
  Job job;
  job.gone = {3};
  job.of(0).Send({{3, Bytes("late")}, {2, std::vector<std::byte>(Letters::kMostBytes + 1)}});
  job.Pass();
  CHECK(job.world.net().messages_sent(0) == 0);
  job.of(0).Send({{2, std::vector<std::byte>(Letters::kMostBytes)}});
  job.Pass();
  CHECK(job.of(2).Take().at(0).bytes.size() == Letters::kMostBytes);
}

TEST_CASE("more letters than are read stay where they are") {
  Job job;
  for (int i = 0; i < 600; ++i) job.of(0).Send({{2, Bytes(std::to_string(i))}});
  size_t got = 0, most = 0;
  for (int s = 0; s < 60 && got < 600; ++s) {
    for (int pass = 0; pass < 20; ++pass) job.Pass();
    const auto taken = job.of(2).Take();
    for (const Letter& letter : taken) CHECK(Text(letter.bytes) == std::to_string(got++));
    most = std::max(most, taken.size());
  }
  CHECK(got == 600);
  CHECK(most == 256);
}

TEST_CASE("watch threads write and read while their runtimes run") {
  Job job;
  std::atomic<bool> over{false};
  std::thread runtimes([&] {
    while (!over.load()) job.Pass();
  });
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i) job.of(0).Send({{2, Bytes(std::to_string(i))}});
  });
  size_t got = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (got < 300 && std::chrono::steady_clock::now() < until) {
    for (const Letter& letter : job.of(2).Take())
      CHECK(Text(letter.bytes) == std::to_string(got++));
    std::this_thread::yield();
  }
  over.store(true);
  writer.join();
  runtimes.join();
  CHECK(got == 300);
}

TEST_CASE("a job that has failed has its memory back") {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Job job(seed);
    job.of(0).Send({{2, Bytes("x")}, {3, Bytes("y")}});
    job.of(0).Advance(job.now);
    job.of(2).Advance(job.now);
    for (int rank = 0; rank < 4; ++rank) job.of(rank).Close();
    CHECK(job.world.net().lent() == 0);
    job.of(0).Send({{2, Bytes("z")}});
    job.Pass();
    CHECK(job.of(2).Take().empty());
  }
}

}  // namespace
}  // namespace horon::test
