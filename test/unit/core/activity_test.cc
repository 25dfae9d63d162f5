#include "runtime/core/activity.h"

#include <latch>
#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

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
  CHECK(later.blocked == 1);  // main runs: it takes the snapshots
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
  CHECK(with.blocked == 1);
  CHECK(later.blocked == 0);
  CHECK(later.callers == 1);
}

TEST_CASE("threads of a program whose main thread computes are not blocked by sleeping") {
  Callers callers;
  Pooled pooled(callers);
  CHECK(Watch(callers, 1).blocked == 0);
  pooled.End();
}

}  // namespace
}  // namespace horon
