// Rendezvous: how the ranks of one node come to share one segment.
//
// Under horonrun every rank has a socket to the launcher, which relays the memfd that local rank 0
// made. Under MPI local rank 0 listens on an abstract unix socket whose random name MPI carried to
// the others; they connect, it checks that they are the same user, and passes the memfd. Either way
// the sockets stay open and go to the watch (watch.h), to which end of file means a death.
//
// All of this blocks, with a limit, and is called by horon_init on the user's thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/descriptor.h"
#include "runtime/transport/packets.h"
#include "runtime/transport/segment.h"

namespace horon {

// Under horonrun. `generation` counts this process's inits. The others may not have it yet.
Result<std::shared_ptr<SharedSegment>> MeetThroughLauncher(LauncherSocket& launcher, int local_rank,
                                                           int generation,
                                                           const SegmentShape& shape,
                                                           std::chrono::milliseconds limit);
// Everyone must have mapped the segment before anyone relies on it: a rank that leaves at once
// would otherwise take the launcher's relay down before the others have it. `members`: the node's
// ranks.
Status WaitForAll(SharedSegment& segment, const std::vector<int>& members, int local_rank,
                  std::chrono::milliseconds limit);

// Under MPI: local rank 0 listens, the name travels, then all call MeetThroughSocket.
struct Listener {
  Descriptor socket;
  std::string name;  // of the abstract socket, without its leading zero byte
};
Result<Listener> Listen();

struct Meeting {
  std::shared_ptr<SharedSegment> segment;
  std::vector<std::pair<Descriptor, int>> peers;  // socket, local rank; for the watch
  bool deterministic = true;  // Config::deterministic of rank 0, which all follow
};
// `listener` is local rank 0's own, empty elsewhere.
Result<Meeting> MeetThroughSocket(const Listener& listener, const std::string& name, int local_size,
                                  int local_rank, const SegmentShape& shape,
                                  std::chrono::milliseconds limit);

}  // namespace horon
