// GpuRoad: how the executor runs a bucket whose tensors lie on a GPU.
//
// All is enqueued on the communicator's stream, or a blocking caller's, behind events that say when
// the inputs are there; the bucket's works are finished as soon as that is done, with an event that
// says when the outputs are. So no user's thread waits for the device, and the holder of the baton
// only asks events, here, whether what it wants to send has arrived.
//
// The ways, chosen alike on all ranks: kGroup, all ranks reach each other over NCCL; kNodes,
// elementwise ops of several nodes: NCCL inside each, the host's transports between them, chunk by
// chunk; kHost, whatever else there is: the inputs are copied to the host, where the op runs as it
// does for tensors of the host. Buckets use the device in the order in which they were started.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "runtime/base/counters.h"
#include "runtime/core/entry.h"
#include "runtime/op/gpu_stage.h"
#include "runtime/transport/gpus.h"

namespace horon {

// What the road sees of a bucket in flight, beside what an op sees.
class GpuBucket : public Stage {
 public:
  virtual std::span<Entry> entries() = 0;
  virtual Op& op() = 0;
  virtual int64_t fusion_bytes() const = 0;  // the user's threshold
  // Zeros for a rank that takes part without having asked.
  virtual Status FillMissingInputs() = 0;
};

class GpuRoad {
 public:
  // `between_nodes`: NCCL spans nodes too. `gpus` may be null.
  GpuRoad(const Fabric& fabric, std::shared_ptr<Gpus> gpus, bool between_nodes, Counters& counters);
  ~GpuRoad();

  // The bucket's way through, in the order of calls. The bucket outlives the Task.
  Task Run(GpuBucket& bucket);
  // Takes back what the device is done with; kUnavailable when a group has noticed a failure, or
  // the device has not ended a collective of one in time.
  Status Progress();
  // Whether a bucket of the global process set has had its streams made before.
  bool open() const {
    const auto found = shares_.find(0);
    return found != shares_.end() && found->second.stream != nullptr;
  }
  // Whether a bucket waits for the device, or a group to be left, which wakes nobody.
  bool waits() const {
    return awaited_ > 0 || std::any_of(endings_.begin(), endings_.end(), [](const Ending& ending) {
             return ending.share.group && !ending.told;
           });
  }
  // Memory of the host; `pinned`: such as the device reads and writes by itself, if there is one.
  Pool& host_pool(bool pinned) const {
    return pinned && pinned_pool_ ? *pinned_pool_ : *fabric_->host_pool;
  }
  void Forget(int32_t process_set);
  // The job has failed: ends what is in flight on the device. All Tasks are gone by then. Takes
  // seconds at most, and calls `alive` meanwhile.
  using Alive = std::function<void()>;
  void Abort(const Alive& alive);

 private:
  enum class Way { kUnknown, kHost, kNodes, kGroup };
  struct Share {  // what a process set keeps between buckets
    Way way = Way::kUnknown;
    bool direct = false;  // messages between nodes may come out of the device's memory
    MemoryRegistration registration = MemoryRegistration::kNone;  // with the group
    std::unique_ptr<Stream> stream, down, up;  // kernels and groups; copies to the host, and back
    Buffer fusion;                             // on the device, of a bucket
    std::deque<std::pair<SharedEvent, Buffer>> outgrown;  // registered still, free once it is done
    std::deque<Buffer> together;                          // registered by all; the last is used
    SharedEvent last;                 // the end of its group's last bucket, on whatever stream
    std::unique_ptr<GpuGroup> group;  // of all ranks, or of this node's; goes before its memory
  };
  struct Ending {  // a share that is used no more
    Share share;
    std::vector<SharedEvent> last;  // what the device has not reached yet of what it was given
    bool told = false;              // the group is leaving, or aborted
  };
  struct Left;
  class OnGpu;  // gpu_road_stage.cc

  // gpu_road.cc: the order of buckets, the choice of their ways.
  Task RunInTurn(GpuBucket& bucket, uint64_t ticket);
  Status Open(Share& share);
  Task Decide(Communicator& comm, Share& share);
  Task Connect(Communicator& members, Share& share);
  Way WayOf(GpuBucket& bucket, const Share& share) const;
  Status Begin(GpuBucket& bucket, Stream& stream) const;
  Status Finish(GpuBucket& bucket, Stream& stream);
  Stream& StreamOf(GpuBucket& bucket, const Share& share);
  Status BeginGroup(GpuBucket& bucket, const Share& share, Stream& stream) const;
  Status FinishGroup(GpuBucket& bucket, Share& share, Stream& stream);
  Status Own(GpuBucket& bucket, size_t i, Shape shape);
  Status OwnOutputs(GpuBucket& bucket);

  // gpu_road_upkeep.cc
  Result<std::byte*> Block(const GpuBucket& bucket, Share& share, int64_t bytes);
  Result<std::byte*> BlockAlike(const GpuBucket& bucket, Share& share, int64_t bytes);
  static Status SweepOutgrown(Share& share);
  Status Retire(Stream& stream, Buffer buffer);
  std::chrono::milliseconds limit() const;
  std::chrono::milliseconds AtMost(std::chrono::milliseconds most) const;
  std::chrono::milliseconds PatienceFor(const Share& share) const;
  Status Watch();
  bool DeviceEnds() const;
  void BeginToEnd(Share share);
  static bool Ended(Ending& ending);
  void SweepEndings();
  void EndAll(bool in_peace, std::chrono::milliseconds most, const Alive& alive);
  void LeaveBehind();

  // gpu_road_stage.cc: staged ops, and what they exchange with ranks that no group reaches.
  Task RunStaged(GpuBucket& bucket, Share& share);
  Task Exchange(Communicator& comm, Share& share, std::span<const int> near, std::vector<Span> send,
                std::vector<Span> recv);
  Task MeetNode(Communicator& comm, const Share& share);
  Task ExchangeFar(Communicator& comm, Share& share, SharedEvent before, std::vector<Span> send,
                   std::vector<Span> recv);
  Task ExchangeDirect(Communicator& comm, Share& share, SharedEvent before, std::vector<Span> send,
                      std::vector<Span> recv);
  Task ReduceDirectly(Communicator& across, Share& share, std::byte* block, int64_t count,
                      Reduction reduction);

  // gpu_road_ways.cc: the ways of elementwise ops, and through the host.
  Status Keep(GpuBucket& bucket, Share& share);
  Status Launch(GpuBucket& bucket, Share& share);
  Status Reduce(GpuBucket& bucket, Share& share, const Reduction& reduction);
  Status ReduceOne(GpuBucket& bucket, Share& share, const Reduction& reduction, Stream& stream);
  Task ReduceOverNodes(GpuBucket& bucket, Share& share);
  Task ExchangeBetween(Communicator& across, Share& share, std::byte* part, int64_t count,
                       Reduction reduction);
  Task RunOnHost(GpuBucket& bucket, Share& share);
  Task ReduceOnHost(GpuBucket& bucket, Share& share);
  Status ReturnOutputs(GpuBucket& bucket, Stream& stream);

  const Fabric* fabric_;
  std::shared_ptr<Gpus> gpus_;
  bool between_nodes_;
  std::shared_ptr<Gpu> gpu_;  // null until a bucket of this rank lies on it
  std::shared_ptr<Pool> device_pool_, pinned_pool_;
  std::shared_ptr<Pool> registered_pool_;  // of memory that groups register; null: they do not
  std::shared_ptr<GpuReturns> returns_ = std::make_shared<GpuReturns>();
  std::map<int32_t, Share> shares_;
  std::vector<Ending> endings_;
  std::vector<Share> spare_;  // streams, of shares that have ended
  std::map<void*, std::shared_ptr<Stream>> borrowed_;  // of callers
  SharedEvent last_;        // the end of the last bucket
  SharedEvent last_group_;  // that of the last one that used a group
  SharedEvent watched_;     // that of one which the device has not ended yet
  std::chrono::steady_clock::time_point watched_since_, watched_at_;
  uint64_t next_ticket_ = 0, serving_ = 0;
  int awaited_ = 0;
  Counter &grouped_, &between_, &hosted_, &direct_, &at_callers_;
};

}  // namespace horon
