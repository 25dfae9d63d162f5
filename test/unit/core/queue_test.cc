#include "runtime/core/queue.h"

#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

Queue::Submission Named(const std::string& name, std::shared_ptr<Work> work, int member = 0) {
  Queue::Submission s;
  s.entry.request.name = name;
  s.work = std::move(work);
  s.member = member;
  return s;
}
std::vector<Queue::Submission> One(const std::string& name, const std::shared_ptr<Work>& work) {
  std::vector<Queue::Submission> all;
  all.push_back(Named(name, work));
  return all;
}

TEST_CASE("a dropped entry finishes its work as aborted") {
  auto work = std::make_shared<Work>(1);
  Queue queue;
  REQUIRE(queue.Push(One("a", work)).ok());
  CHECK_FALSE(work->done());
  queue.PopAll().clear();
  CHECK(work->done());
  CHECK(work->status().code() == Code::kAborted);
}

TEST_CASE("a group's work finishes with its last member and keeps the first failure") {
  auto work = std::make_shared<Work>(3);
  Queue queue;
  std::vector<Queue::Submission> all;
  for (int i = 0; i < 3; ++i) all.push_back(Named(std::to_string(i), work, i));
  REQUIRE(queue.Push(std::move(all)).ok());
  auto entries = queue.PopAll();
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
  REQUIRE(queue.Push(One("b", first)).ok());
  std::vector<Queue::Submission> all;
  all.push_back(Named("a", group, 0));
  all.push_back(Named("b", group, 1));
  CHECK(queue.Push(std::move(all)).code() == Code::kInvalidArgument);
  CHECK(queue.PopAll().size() == 1);
  auto again = std::make_shared<Work>(1);
  CHECK(queue.Push(One("a", again)).ok());  // its name was not kept
}

TEST_CASE("a closed queue fails what is in it and what comes later with one status") {
  auto before = std::make_shared<Work>(1), after = std::make_shared<Work>(1);
  Queue queue;
  REQUIRE(queue.Push(One("a", before)).ok());
  queue.Close(Status::Unavailable("rank 3 died"));
  CHECK(before->status().message() == "rank 3 died");
  CHECK(queue.Push(One("b", after)).message() == "rank 3 died");
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
        if (!queue.Push(One(std::to_string(n), works[n])).ok()) std::abort();
      }
      --pushing;
    });
  }
  size_t popped = 0;
  while (pushing > 0 || !queue.empty()) {
    for (Entry& entry : queue.PopAll()) {
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
