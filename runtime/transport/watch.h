// Watch: the thread that hears of deaths. It sleeps on the socket to the launcher and, under MPI,
// on the sockets between the ranks of the node; end of file without a goodbye means that the
// process is gone. It marks the dead of this node in the segment, reports others to Losses, and
// rings.
//
// It is the watchdog, too: from time to time it has the runtime look whether anybody moves it.
//
// Made by join.cc once the node has met; lives as long as its runtime. It takes no part in
// negotiation and touches no transport, so it notices a death whatever the runtime is doing.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/descriptor.h"
#include "runtime/transport/losses.h"
#include "runtime/transport/packets.h"
#include "runtime/transport/segment.h"

namespace horon {

struct WatchParts {
  std::shared_ptr<SharedSegment> segment;  // null when this rank is alone on its node
  std::vector<int> members;                // the node's global ranks
  int local_rank = 0;
  std::shared_ptr<LauncherSocket> launcher;       // null without horonrun
  std::vector<std::pair<Descriptor, int>> peers;  // socket, local rank
  std::shared_ptr<Losses> losses;
  int describe_fd = -1;  // an eventfd: readable when on_describe is wanted; not taken over
};

class Watch {
 public:
  explicit Watch(WatchParts parts);  // starts the thread
  ~Watch();                          // stops it; the launcher's socket stays open for a later init
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Whether it watches; unavailable when the system gave it no descriptor.
  Status status() const;
  // What to do when describe_fd becomes readable; called on the watch thread.
  void OnDescribe(std::function<void()> describe);
  // What to do from time to time, on the watch thread; says when next. Null: nothing any more, and
  // none is under way.
  void OnLook(std::function<std::chrono::milliseconds()> look);
  // Has it done at once. Any thread.
  void LookSoon();
  // Tells the launcher. Does nothing without one; a launcher that is gone needs no news.
  void Tell(const std::string& packet);
  // Before leaving: end of file on my side is no death from now on.
  void SayBye();
  // This rank ends because of an error of its own, and the others must not wait for it. `what` goes
  // on after "rank N ": "raised ValueError: ...", "failed: ...". Any thread.
  void SayLost(const std::string& what);

 private:
  void Run();
  bool HearLauncher();  // whether there is more to hear
  bool HearPeer(int fd, int local);
  void Lost(int rank, const std::string& sentence);
  void LostAll(const std::string& sentence);
  void Stop();
  int Patience();
  void Look();
  void GiveUpPeers();

  void HearSignal();
  void HearSoon();

  WatchParts parts_;
  Mutex mutex_;
  std::function<void()> describe_ HORON_GUARDED_BY(mutex_);
  std::function<std::chrono::milliseconds()> look_ HORON_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point look_at_;  // of the watch thread
  // Peers whose sockets have ended, in that order, and until when their cause is waited for. Of the
  // watch thread.
  std::deque<std::pair<std::chrono::steady_clock::time_point, int>> gone_;
  Descriptor stop_, soon_;  // eventfds
  int error_;        // why there is no stop_; else 0
  std::thread thread_;
};

}  // namespace horon
