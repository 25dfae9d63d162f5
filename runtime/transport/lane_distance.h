// LaneDistance: how long a cache line takes from another member's caches to mine, just now.
//
// Cores that share a cache have what another one wrote in some tens of nanoseconds. Cores that do
// not, of two complexes or sockets, wait several times as long for each such line, longer than for
// one that lies in memory; and a virtual machine's cores move between the two within seconds. So a
// member looks once a chunk how long one line took that it knows to be changed: the partner's
// `beat`, which is read for nothing else. Holder of the baton only.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace horon {

class LaneDistance {
 public:
  // Lines that take `far_ns` or longer are far.
  LaneDistance(int members, int64_t far_ns)
      : far_ns_(far_ns), seen_(static_cast<size_t>(members)) {}

  // At a line of member `m` that only it writes, each time another number.
  void Look(int m, const std::atomic<uint64_t>& beat);
  // One look took so long.
  void Saw(int64_t ns);
  // Whether what I write for others had better go past my caches.
  bool far() const { return far_share_ >= kShare; }

 private:
  // Near ones are not: lines are fetched ahead, too. One of the last few is an interruption.
  static constexpr double kShare = 0.15, kNewest = 0.125;

  int64_t far_ns_;
  double far_share_ = -1;       // of the last few looks; below 0 before the first
  std::vector<uint64_t> seen_;  // of each member
};

}  // namespace horon
