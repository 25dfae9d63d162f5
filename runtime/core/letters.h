// Letters: short messages between ranks of different nodes that nobody expects, for when negotiation
// stands still (inquest.h). Written and read by the watch thread, carried by the runtime of either
// rank, with no third one in between. A runtime that carries none looks four times a second whether
// one has come; whoever has none to send sends nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/transport/communicator.h"

namespace horon {

struct Letter {
  int peer = -1;  // whom it is to, or from
  std::vector<std::byte> bytes;
};

class Letters {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostBytes = 32 << 10;

  // `gone`: whether a rank has left the job; it gets no letter any more.
  Letters(const Fabric& fabric, std::function<bool(int rank)> gone);

  // Watch thread. A longer one than kMostBytes is not sent.
  void Send(std::vector<Letter> letters);
  std::vector<Letter> Take();

  // Holder of the baton. Whether one has come.
  bool Advance(Clock::time_point now);
  // The job has failed: none goes or comes any more.
  void Close();

 private:
  struct Sending {
    Letter letter;
    Transfer transfer;
  };
  void PostSends();
  void PostReceive();
  bool TakeReceived();

  const std::vector<Transport*>* route_;
  std::function<bool(int)> gone_;
  std::vector<Transport*> ways_;  // to other nodes
  Mutex mutex_;
  std::vector<Letter> outgoing_ HORON_GUARDED_BY(mutex_);
  std::vector<Letter> arrived_ HORON_GUARDED_BY(mutex_);
  std::atomic<bool> to_send_{false};
  // Of the holder.
  Clock::time_point look_at_;
  bool closed_ = false, receiving_ = false;
  std::vector<std::byte> received_;  // empty until the first one comes
  std::list<Sending> sending_;
  Transfer receive_;  // last, as the sends: cancelled before the memory goes
};

}  // namespace horon
