#include "runtime/core/queue.h"

#include <array>
#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

Submission Named(const std::string& name) {
  Request request;
  request.name = name;
  return {std::make_shared<Registration>(std::move(request), nullptr)};
}
std::vector<Entry> Popped(Queue& queue) {
  std::vector<Entry> entries;
  queue.PopAll(entries);
  return entries;
}
Status Push(Queue& queue, std::vector<Submission> all, const std::shared_ptr<Work>& work) {
  return queue.Push(all, work);
}

TEST_CASE("a dropped entry finishes its work as aborted") {
  auto work = std::make_shared<Work>(1);
  Queue queue;
  REQUIRE(Push(queue, {Named("a")}, work).ok());
  CHECK_FALSE(work->done());
  Popped(queue).clear();
  CHECK(work->done());
  CHECK(work->status().code() == Code::kAborted);
}

TEST_CASE("a group's work finishes with its last member and keeps the first failure") {
  auto work = std::make_shared<Work>(3);
  Queue queue;
  REQUIRE(Push(queue, {Named("0"), Named("1"), Named("2")}, work).ok());
  auto entries = Popped(queue);
  entries[1].promise.Finish(Status::InvalidArgument("the second"));
  entries[0].promise.Finish(Status::Ok());
  CHECK_FALSE(work->done());
  entries[2].promise.Finish(Status::Internal("the third"));
  CHECK(work->done());
  CHECK(work->status().message() == "the second");
}

TEST_CASE("a group with a pending name is refused whole") {
  auto first = std::make_shared<Work>(1), group = std::make_shared<Work>(2);
  Queue queue;
  const Submission a = Named("a"), b = Named("b");
  REQUIRE(Push(queue, {b}, first).ok());
  CHECK(Push(queue, {a, b}, group).code() == Code::kInvalidArgument);
  CHECK(Push(queue, {a, a}, group).code() == Code::kInvalidArgument);
  CHECK(Popped(queue).size() == 1);
  CHECK(Push(queue, {a, b}, std::make_shared<Work>(2)).ok());  // neither is pending any more
}

TEST_CASE("a closed queue fails what is in it and what comes later with one status") {
  auto before = std::make_shared<Work>(1), after = std::make_shared<Work>(1);
  Queue queue;
  REQUIRE(Push(queue, {Named("a")}, before).ok());
  queue.Close(Status::Unavailable("rank 3 died"));
  CHECK(before->status().message() == "rank 3 died");
  CHECK(Push(queue, {Named("b")}, after).message() == "rank 3 died");
}

Queue::Wish Wish(Queue& queue, const Submission& what) {
  Queue::Wish wish{};
  std::array submissions{what};
  REQUIRE(queue.Push(submissions, std::make_shared<Work>(1), &wish).ok());
  return wish;
}
// Whether this push asks its caller to ring.
bool Rings(Queue& queue, const Submission& what) {
  return Wish(queue, what) == Queue::Wish::kRing;
}
Submission Scheduled(const std::string& name) {
  Submission made = Named(name);
  made.what->batch = 0;
  return made;
}

TEST_CASE("only the first push after a pop rings") {
  Queue queue;
  CHECK(Rings(queue, Named("a")));
  CHECK_FALSE(Rings(queue, Named("b")));
  Popped(queue);
  CHECK(Rings(queue, Named("c")));
}

TEST_CASE("in a locked schedule the push that completes a batch rings, and any stranger") {
  Queue queue;
  REQUIRE(queue.RingFrom(3, 0));
  CHECK_FALSE(Rings(queue, Scheduled("a")));
  CHECK_FALSE(Rings(queue, Scheduled("b")));
  CHECK_FALSE(queue.RingFrom(2, 0));  // there are two: whoever asks goes on
  CHECK(Rings(queue, Scheduled("c")));
  CHECK_FALSE(Rings(queue, Named("d")));  // already asked
  Popped(queue);
  CHECK(queue.RingFrom(3, 0));
  CHECK(Rings(queue, Named("e")));
}

TEST_CASE("what is complete rings when it is enough, or if a peer waits for it") {
  const int64_t each = Scheduled("a").what->bytes;
  Queue queue;
  REQUIRE(queue.RingFrom(2, 3 * each));
  CHECK(Wish(queue, Scheduled("a")) == Queue::Wish::kNothing);
  CHECK(Wish(queue, Scheduled("b")) == Queue::Wish::kRingIfAwaited);
  CHECK(Wish(queue, Scheduled("c")) == Queue::Wish::kRing);
  CHECK(Wish(queue, Scheduled("d")) == Queue::Wish::kNothing);  // already asked
  Popped(queue);
  CHECK(Wish(queue, Scheduled("e")) == Queue::Wish::kNothing);
  CHECK(Wish(queue, Scheduled("f")) == Queue::Wish::kRingIfAwaited);
  CHECK(Wish(queue, Named("g")) == Queue::Wish::kRing);
}

TEST_CASE("many threads push while one pops; every work finishes once") {
  constexpr int kThreads = 4, kEach = 2000;
  Queue queue;
  std::vector<std::shared_ptr<Work>> works(kThreads * kEach);
  for (auto& work : works) work = std::make_shared<Work>(1);
  std::atomic<int> pushing{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const size_t n = static_cast<size_t>(t * kEach + i);
        if (!Push(queue, {Named(std::to_string(n))}, works[n]).ok()) std::abort();
      }
      --pushing;
    });
  }
  size_t popped = 0;
  while (pushing > 0 || !queue.empty()) {
    for (Entry& entry : Popped(queue)) {
      entry.promise.Finish(Status::Ok());
      ++popped;
    }
  }
  for (auto& thread : threads) thread.join();
  CHECK(popped == works.size());
  for (auto& work : works) REQUIRE((work->done() && work->status().ok()));
}

TEST_CASE("waiting for a work ends when the time is over, or with the work") {
  auto work = std::make_shared<Work>(1);
  CHECK_FALSE(work->WaitFor(std::chrono::milliseconds(5)));
  std::thread finisher([&] { Promise(work, 0, nullptr).Finish(Status::Ok()); });
  CHECK(work->WaitFor(std::chrono::seconds(60)));
  finisher.join();
}

}  // namespace
}  // namespace horon
