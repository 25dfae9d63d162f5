// Activity: what a rank says of itself when the coordinator asks why something stalls; and Callers,
// which keeps it. Submitted and Waiting: user threads. Snapshot: the holder of the baton.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/core/inquiries.h"

namespace horon {

struct Activity {
  int32_t callers = 0;             // user threads that have used the runtime and still run
  int32_t blocked = 0;             // of those, asleep in a wait
  uint64_t submits = 0;            // so far
  std::vector<std::string> waits;  // keys they wait for, some of them
  std::string last;                // key submitted last; empty: none yet
  int64_t last_ms = 0;             // how long ago
  std::string doing;               // where the program was at the last inquiry; empty: unknown

  bool operator==(const Activity&) const = default;
};

class Callers {
 public:
  Callers() : shared_(std::make_shared<Shared>()) {}
  using Key = std::shared_ptr<const std::string>;
  void Submitted(Key key);
  Activity Snapshot() const;
  // Outlives this: a thread of the program's may wait in it.
  const std::shared_ptr<Inquiries>& inquiries() const { return inquiries_; }

  // This thread waits for `key` while it lives.
  class Waiting {
   public:
    Waiting(Callers& callers, Key key);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Callers& callers_;
    Key key_;
  };

 private:
  struct Shared {
    mutable Mutex mutex;
    Activity now HORON_GUARDED_BY(mutex);  // but for `last`
    Key last HORON_GUARDED_BY(mutex);
    std::chrono::steady_clock::time_point last_at HORON_GUARDED_BY(mutex);
  };
  class Membership;
  void Join();
  std::shared_ptr<Inquiries> inquiries_ = std::make_shared<Inquiries>();
  std::shared_ptr<Shared> shared_;  // with the threads' memberships, which may outlive this
};

}  // namespace horon
