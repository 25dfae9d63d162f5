// Activity: what a rank says of itself when the coordinator asks why something stalls; and Callers,
// which keeps it. Submitted and Waiting: user threads. Snapshot: the holder of the baton.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/look.h"
#include "runtime/base/mutex.h"
#include "runtime/core/inquiries.h"
#include "runtime/core/sleepers.h"

namespace horon {

struct Activity {
  int32_t callers = 0;             // user threads that have used the runtime and still run
  int32_t blocked = 0;             // of those, asleep in a wait, or in a lock (Snapshot says when)
  uint64_t submits = 0;            // so far
  std::vector<std::string> waits;  // keys they wait for, some of them
  std::string last;                // key submitted last; empty: none yet
  int64_t last_ms = 0;             // how long ago
  std::string doing;               // where the program was at the last inquiry; empty: unknown

  bool operator==(const Activity&) const = default;
};

class Callers {
  struct Thread;

 public:
  Callers() : shared_(std::make_shared<Shared>()) {}
  using Key = std::shared_ptr<const std::string>;
  void Submitted(Key key);
  // A thread that does not wait here counts as blocked, too, if snapshots find it asleep in a lock
  // (a futex) for a while, and no other thread of the program at work: an idle one of a pool, such
  // as autograd's for a GPU. The program's main thread only if what it waits for is known to be a
  // wait of another thread here (HandsOver), as for a future of torch's.
  Activity Snapshot();
  // The calling thread lets another one wait in its place, until TakesBack of the number returned.
  pid_t HandsOver();
  void TakesBack(pid_t thread);
  // Outlives this: a thread of the program's may wait in it.
  const std::shared_ptr<Inquiries>& inquiries() const { return inquiries_; }

  // This thread waits for `key` while it lives.
  class Waiting final : public Looker {
   public:
    Waiting(Callers& callers, Key key);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

    // It is at work in between, and not waiting.
    void TurnsAway() override;
    void TurnsBack() override;

   private:
    Callers& callers_;
    Key key_;
    Thread& thread_;
    bool before_;  // whether it had turned away from another wait, in which this one is
  };

 private:
  struct Thread {
    pid_t id = 0;
    int waits = 0;        // here
    int handed_over = 0;  // waits of other threads in its place
    bool away = false;    // from its waits, at work
  };
  struct Shared {
    mutable Mutex mutex;
    Activity now HORON_GUARDED_BY(mutex);  // but for `last`, `callers` and `blocked`
    std::list<Thread> threads HORON_GUARDED_BY(mutex);
    Key last HORON_GUARDED_BY(mutex);
    std::chrono::steady_clock::time_point last_at HORON_GUARDED_BY(mutex);
  };
  class Membership;
  Thread& Join();
  int32_t Blocked(const std::vector<Thread>& threads);
  std::shared_ptr<Inquiries> inquiries_ = std::make_shared<Inquiries>();
  Mutex looking_;  // while the kernel is asked; never held by a thread that submits or waits
  Sleepers sleepers_ HORON_GUARDED_BY(looking_);
  std::shared_ptr<Shared> shared_;  // with the threads' memberships, which may outlive this
};

}  // namespace horon
