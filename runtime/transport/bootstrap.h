// Bootstrap: how the ranks of one node come to share one segment, and how they notice a death.
//
// Under horonrun every rank has a socket to the launcher, which relays the memfd that local rank 0
// made and later says who died. Under MPI local rank 0 listens on an abstract unix socket whose
// random name MPI carried to the others; they connect, it checks that they are the same user, and
// passes the memfd. Either way the sockets stay open: end of file without a goodbye means that the
// process is gone. A watch thread sleeps on them, marks the dead in the segment and rings every
// doorbell.
//
// Meet* block, with a limit, and are called by horon_init. A NodeLink lives as long as its runtime.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/transport/segment.h"

namespace horon {

// This process's socket to the launcher, for all its inits. Not closed: the launcher takes end of
// file for the end of the process.
struct LauncherSocket {
  struct Packet {
    std::string text;  // empty: end of file
    int fd = -1;       // that came with it
  };
  int fd = -1;
  Mutex mutex;  // guards kept
  std::vector<Packet> kept HORON_GUARDED_BY(
      mutex);  // segments of a later init that the watch thread of this one received
};

class NodeLink {
 public:
  ~NodeLink();  // stops the watch; the launcher's socket stays open for a later init
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;
  const std::shared_ptr<SharedSegment>& segment() const { return segment_; }

  // Under horonrun. `members`: the node's global ranks; `generation` counts this process's inits.
  static Result<std::unique_ptr<NodeLink>> MeetThroughLauncher(
      std::shared_ptr<LauncherSocket> launcher, std::vector<int> members, int local_rank,
      int generation, const SegmentShape& shape, std::chrono::milliseconds limit);
  // Under MPI. Listener first (local rank 0), then the name travels, then all call
  // MeetThroughSocket.
  struct Listener {
    int fd = -1;
    std::string name;  // of the abstract socket, without its leading zero byte
  };
  static Result<Listener> Listen();
  static Result<std::unique_ptr<NodeLink>> MeetThroughSocket(
      Listener listener, const std::string& name, std::vector<int> members, int local_rank,
      const SegmentShape& shape, std::chrono::milliseconds limit);
  // Before leaving: end of file on my side is no death from now on.
  void SayBye();

 private:
  NodeLink(std::shared_ptr<SharedSegment> segment, std::vector<int> members, int local_rank);
  Status WaitForAll(std::chrono::milliseconds limit);
  void StartWatching();
  void StopWatching();
  void Watch();
  bool HearLauncher();

  std::shared_ptr<SharedSegment> segment_;
  std::vector<int> members_;
  int local_rank_;
  std::shared_ptr<LauncherSocket> launcher_;  // null under MPI
  std::vector<std::pair<int, int>> peers_;    // socket, local rank; owned
  int stop_fd_ = -1;
  std::thread watch_;
};

}  // namespace horon
