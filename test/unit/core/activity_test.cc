#include "runtime/core/activity.h"

#include <unistd.h>

#include <latch>
#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

// ThreadSanitizer has a thread that sleeps for a time, and not in a lock: it might wake somebody.
#ifdef __SANITIZE_THREAD__
constexpr int kAsleep = 0;
#else
constexpr int kAsleep = 1;
#endif

Callers::Key KeyOf(const char* name) { return std::make_shared<const std::string>(name); }

// The first snapshot with so many blocked, or the last one of two seconds.
Activity Watch(Callers& callers, int blocked) {
  Activity activity = callers.Snapshot();
  for (int i = 0; i < 20 && activity.blocked != blocked; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});  // what is looked for takes time
    activity = callers.Snapshot();
  }
  return activity;
}

// A thread that has used the runtime, and sleeps in a lock until its end.
class Pooled {
 public:
  explicit Pooled(Callers& callers)
      : thread_([this, &callers] {
          callers.Submitted(KeyOf("0/pooled"));
          in_.count_down();
          out_.wait();
        }) {
    in_.wait();
  }
  void End() {
    out_.count_down();
    thread_.join();
  }

 private:
  std::latch in_{1}, out_{1};
  std::thread thread_;
};

TEST_CASE("an idle thread counts as blocked after a while, a working one never") {
  Callers callers;
  callers.Submitted(KeyOf("0/main"));
  Pooled pooled(callers);
  CHECK(callers.Snapshot().blocked == 0);  // nobody knows for how long it has slept
  const Activity later = Watch(callers, 1);
  CHECK(later.callers == 2);
  CHECK(later.blocked == kAsleep);  // main runs: it takes the snapshots
  pooled.End();
  const Activity after = callers.Snapshot();
  CHECK(after.callers == 1);
  CHECK(after.blocked == 0);
}

TEST_CASE("the main thread counts as blocked only while another one waits in its place") {
  Callers callers;
  callers.Submitted(KeyOf("0/main"));
  Activity without, with, later;
  std::thread([&] { without = Watch(callers, 1); }).join();
  const pid_t me = callers.HandsOver();
  std::thread([&] { with = Watch(callers, 1); }).join();
  callers.TakesBack(me);
  callers.TakesBack(me);  // once too often does nothing
  std::thread([&] { later = callers.Snapshot(); }).join();
  CHECK(without.blocked == 0);
  CHECK(with.blocked == kAsleep);
  CHECK(later.blocked == 0);
  CHECK(later.callers == 1);
}

TEST_CASE("threads of a program whose main thread computes are not blocked by sleeping") {
  Callers callers;
  Pooled pooled(callers);
  CHECK(Watch(callers, 1).blocked == 0);
  pooled.End();
}

TEST_CASE("threads are not blocked by sleeping while another one of the program is at work") {
  Callers callers;
  callers.Submitted(KeyOf("0/main"));
  Pooled pooled(callers);
  CHECK(Watch(callers, 1).blocked == kAsleep);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::latch reads{1};
  std::thread loader([&] {  // has not used the runtime, and may wake who has
    char byte;
    reads.count_down();
    [[maybe_unused]] const ssize_t n = read(ends[0], &byte, 1);
  });
  reads.wait();
  Activity activity = callers.Snapshot();
  for (int i = 0; i < 20 && activity.blocked != 0; ++i) activity = callers.Snapshot();
  CHECK(activity.blocked == 0);
  close(ends[1]);
  loader.join();
  CHECK(Watch(callers, 1).blocked == kAsleep);
  close(ends[0]);
  pooled.End();
}

TEST_CASE("who turns away from a wait is at work, unless it waits again there") {
  Callers callers;
  Callers::Waiting waiting(callers, KeyOf("0/a"));
  CHECK(callers.Snapshot().blocked == 1);
  waiting.TurnsAway();
  CHECK(callers.Snapshot().blocked == 0);
  {
    const Callers::Waiting within(callers, KeyOf("0/b"));
    CHECK(callers.Snapshot().blocked == 1);
  }
  CHECK(callers.Snapshot().blocked == 0);
  waiting.TurnsBack();
  CHECK(callers.Snapshot().blocked == 1);
}

TEST_CASE("a rank with more waits than are told of may have hope") {
  Callers callers;
  std::vector<std::thread> threads;
  std::latch in{40}, out{1};
  for (int i = 0; i < 40; ++i) {
    threads.emplace_back([&] {
      const Callers::Waiting waiting(callers, KeyOf("0/x"));
      in.count_down();
      out.wait();
    });
  }
  in.wait();
  const Activity activity = callers.Snapshot();
  CHECK(activity.waits.size() < 40);
  CHECK(activity.callers == 40);
  CHECK(activity.blocked == 39);
  out.count_down();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace horon
