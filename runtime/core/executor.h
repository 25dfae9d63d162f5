// Executor: runs buckets. The last stage of the road before the op and the transports.
//
// Each bucket in flight is a RootTask; Advance lets every transport progress, then every bucket
// take its next steps. Buckets start in the agreed order, and whatever they share (a lane, a place
// among those that send) they use in that order, so no two ranks can wait for each other. Never
// blocks. Holder of the baton only.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/base/recorder.h"
#include "runtime/core/fusion.h"
#include "runtime/core/gpu_road.h"
#include "runtime/core/process_sets.h"
#include "runtime/core/start_gate.h"
#include "runtime/core/tensor_states.h"
#include "runtime/core/timeline.h"
#include "runtime/transport/communicator.h"
#include "runtime/transport/lane.h"

namespace horon {

class Executor {
 public:
  // Makes the lane of a process set, or null when its members do not all share this rank's node.
  using LaneFactory =
      std::function<std::unique_ptr<Lane>(int32_t process_set, const std::vector<int>& ranks)>;

  Executor(const Fabric& fabric, std::vector<Transport*> transports, const ProcessSets& sets,
           LaneFactory make_lane, Counters& counters, std::shared_ptr<Recorder> recorder,
           Timeline& timeline, std::shared_ptr<Gpus> gpus = nullptr,
           bool nccl_between_nodes = false, TimeUse* time_use = nullptr,
           std::shared_ptr<SharedSegment> segment = nullptr);
  ~Executor();

  void Start(Bucket bucket);
  // Whether a bucket of GPU tensors has run before, of the global process set.
  bool gpus_open() const { return gpu_road_.open(); }
  // Whether anything moved. A failure means that a peer is lost, or that this rank cannot go on: no
  // bucket can, and FailAll has to follow. `held`: buckets stay as they are.
  Result<bool> Advance(bool held = false);
  // Takes back what the locked schedule has started from batch `first` on, which not all ranks have
  // started: no tensor of it was written to. Its entries, to be agreed again. Every rank calls it
  // at the same place in its stream of buckets.
  Entries TakeBack(uint64_t first);
  // May take seconds, where a GPU has to end what it was given: calls `alive` meanwhile.
  void FailAll(const Status& status, const std::function<void()>& alive = [] {});
  // Once all that was agreed on has been started: of process sets that are no more.
  void ForgetRemoved();
  // Nothing is under way here, and no other rank waits for what this one has to send.
  bool idle() const { return running_.empty() && !gate_.owes(); }
  // Whether a bucket waits for a GPU, which wakes nobody.
  bool waits_for_gpu() const { return gpu_road_.waits(); }
  // What the oldest bucket in flight is about; kNothing if idle.
  TimeUse::Stage stage() const;
  const Request* oldest() const;  // a tensor of the oldest bucket in flight; null if idle
  int64_t oldest_bytes() const;   // of that bucket's inputs; 0 if idle
  // Buckets are numbered as they start, from 1. Of the oldest in flight; 0 if idle:
  uint64_t oldest_number() const;
  uint64_t oldest_moves() const;  // how often it has gone on
  // A line for each bucket in flight.
  std::vector<std::string> Describe() const;

 private:
  class Running;  // a bucket in flight: a Stage for its op
  struct Group {  // what a process set keeps between buckets
    ProcessSets::Ranks ranks;
    std::optional<Communicator> whole;  // of all of them
    bool connected = false;
    std::unique_ptr<Lane> lane;
    uint64_t sequence = 0;                 // buckets so far
    uint64_t next_ticket = 0, served = 0;  // of buckets that no lane streams
    int running = 0;                       // buckets in flight
    bool over = false;  // the set was removed, and its last bucket has ended
    uint64_t next_staged = 0, staged = 0;  // of staged ops' buckets: taken, begun
    int64_t staged_bytes = 0;              // of those under way
    TensorStates states;
  };
  class Turn;
  class StagedTurn;
  class GatePassed;
  class NoneBefore;
  using RunningList = std::list<std::unique_ptr<Running>, Recycling<std::unique_ptr<Running>>>;

  Group& GroupOf(int32_t process_set, const ProcessSets::Ranks& ranks);
  void Connect(int32_t process_set, Group& group);
  void Keep(Bucket bucket, Group& group);
  Task RunKept(Running& running);
  Communicator CommOf(const Group& group, const std::vector<int>& away, Tag base,
                      bool on_gpu) const;
  static Reduction ReductionOf(const Running& running, Elementwise kind);
  void StartLocked(Running& running, const Elementwise* kind = nullptr);
  Task RunElementwise(Running& running, Elementwise kind);
  Task RunStaged(Running& running, Op& op, int64_t bytes);
  static Task RunOnLane(Running& running, Op& op);
  static Task Stream(Running& running, const Reduction& reduction);
  void CountFused(Running& running);
  Task RunSlices(Running& running, Reduction reduction);

  const Fabric* fabric_;
  std::vector<Transport*> transports_;
  const ProcessSets* sets_;
  LaneFactory make_lane_;
  std::shared_ptr<Recorder> recorder_;  // may be null
  Timeline* timeline_;
  TimeUse* time_use_;  // null: nobody asks
  StartGate gate_;
  uint64_t gated_ = 0;  // the last batch of which a bucket waits for the gate
  std::map<int32_t, Group> groups_;
  int removals_seen_ = 0;  // of process sets, whose GPUs have ended
  GpuRoad gpu_road_;
  RunningList running_;
  uint64_t started_ = 0;
  Status fault_;  // of this rank alone, after the others had agreed: ends the runtime
  Counter& SentTo(int rank);

  Counters* counters_;
  std::vector<Counter*> sent_to_;  // by rank; null: nothing yet
  Counter &buckets_, &tensors_, &fused_tensors_, &fused_bytes_, &bytes_;
};

}  // namespace horon
