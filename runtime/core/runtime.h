// Runtime: the road of a tensor, and the thread that walks it.
//
//   Submit -> Queue -> Negotiator -> PlanFusion -> Executor -> Op -> Transport -> Work
//
// One per process in production (c_api.cc owns it); tests run several in one process as thread
// ranks. It is given its transports and owns everything else. User threads: Submit, Wait, Shutdown,
// the queries. The holder of the baton: the rest.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/counters.h"
#include "runtime/base/mutex.h"
#include "runtime/core/adaptive_spin.h"
#include "runtime/core/autotuner.h"
#include "runtime/core/awaited.h"
#include "runtime/core/baton.h"
#include "runtime/core/executor.h"
#include "runtime/core/inquest.h"
#include "runtime/core/letters.h"
#include "runtime/core/lookout.h"
#include "runtime/core/negotiator.h"
#include "runtime/core/pace.h"
#include "runtime/core/poll_wait.h"
#include "runtime/core/queue.h"
#include "runtime/core/spread.h"
#include "runtime/core/standstill.h"
#include "runtime/peer/peer_engine.h"
#include "runtime/transport/losses.h"

namespace horon {

// What a Runtime is made of; who makes it decides how ranks reach each other.
struct RuntimeParts {
  Config config;
  int rank = 0;
  Topology topology;
  std::vector<std::unique_ptr<Transport>> transports;  // distinct; progressed in this order
  std::vector<Transport*> route;                       // by rank: moves data to it
  std::vector<Transport*> control;                     // by rank: negotiates with it
  std::shared_ptr<SharedSegment> segment;  // this node's; null when the node has one rank
  std::shared_ptr<Counters> counters;
  std::shared_ptr<Recorder> recorder;  // may be null
  bool may_lend = true;                // blocking calls may run the cycle
  std::shared_ptr<Gpus> gpus;          // null: no tensors of GPUs
  std::shared_ptr<Losses> losses;      // made by the runtime if null
  bool launched = false;               // a launcher will say why a rank was lost
  // Told once when this rank fails for a reason that the others cannot know: they must not wait.
  std::function<void(const std::string& what)> on_fault = [](const std::string&) {};
  // Told when this rank has given another one up.
  std::function<void(int rank, const std::string& why)> on_loss = [](int, const std::string&) {};
  // Told when WatchOver should be called soon. By the holder of the baton.
  std::function<void()> on_letter = [] {};
};

class Runtime {
 public:
  explicit Runtime(RuntimeParts parts);
  ~Runtime();  // shuts down
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // All or none; the i-th is the work's i-th member, and is moved from. `wake`: whether the
  // background thread should start on it; false when the caller will Wait at once.
  Status Submit(std::span<Submission> submissions, const std::shared_ptr<Work>& work, bool wake);
  // An order to the windows' engine; the ranks it did not reach become the work's received splits.
  Status Submit(Order order, const std::shared_ptr<Work>& work, bool wake);
  // Whether the work is done after at most `limit`. Runs the cycle on this thread if it can. One
  // that `looks` (look.h) may be broken off by the program; the runtime goes on with the work.
  bool Wait(Work& work, std::chrono::nanoseconds limit, bool looks = false);
  // The same for several, at least one, that this thread waits for anyway: it runs the cycle until
  // the last of them is done.
  bool Wait(std::span<Work* const> works, std::chrono::nanoseconds limit, bool looks = false);
  // Waits as long as it takes: the work's status, or hopeless().
  Status WaitToEnd(Work& work);
  // The same, but that it looks: kAborted where the program has broken it off.
  Status WaitLooking(Work& work);
  // Somebody looks whether a work is done, without waiting: it must not be held back. Any thread.
  void Nudge();
  // Tells all ranks that this one failed: `what` ("raised ValueError: ...") becomes everybody's
  // error. Any thread; returns at once.
  void GiveUp(const std::string& what);
  // Rank 0's call counts: every rank records from the same place in its stream of collectives on,
  // all into one file (timeline.h). On other ranks it does nothing. Blocks until this rank does so.
  // kInvalidArgument: the file cannot be made.
  Status StartTimeline(TimelineOrder order);
  // As HORON_TIMELINE says.
  Status StartConfiguredTimeline();
  // The same for the end; blocks until what this rank recorded is in the file.
  Status StopTimeline();
  // A span of the program's own, on this rank; false: nothing is recorded. Any thread.
  bool NoteInTimeline(TimelineNote&& note) { return timeline_.Note(std::move(note)); }
  // As HORON_AUTOTUNE and HORON_AUTOTUNE_FILE say; rank 0's count. kInvalidArgument: a file cannot
  // be read or written. Returns at once.
  Status StartConfiguredTuning();
  // Prints what is pending, and what it waits for, to stderr. Any thread; returns at once.
  void Describe();
  // Leaves the job; what is pending fails with kAborted. Blocks, at most config.shutdown_time, and
  // some seconds longer where the background thread is stuck, which is then left behind.
  void Shutdown();

  // Whether the job failed under this runtime, rather than being left in peace. Any thread.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }

  // Looks whether anybody runs the cycle while threads wait, and says so if nobody does; when to
  // look again. The watch thread, which takes no part in anything else.
  std::chrono::milliseconds WatchOver();
  // Not Ok once the job has failed, or was left, while the holder of the baton is stuck: no work
  // will be finished any more, and waits end with this. Any thread.
  Status hopeless() const;
  bool without_hope() const { return without_hope_.load(std::memory_order_acquire); }
  // Whether Shutdown had to leave the background thread behind: then nothing here may be destroyed.
  bool stuck() const { return stuck_.load(std::memory_order_relaxed); }

  int rank() const { return rank_; }
  const Config& config() const { return config_; }
  const Topology& topology() const { return fabric_.topology; }
  const ProcessSets& process_sets() const { return sets_; }
  Registry& registry() { return registry_; }
  // The GPU that the device names, and this rank with it from now on.
  Result<std::shared_ptr<Gpu>> GpuOf(Device device) {
    if (!gpus_) return Status::Unsupported("this runtime was made without GPUs");
    return gpus_->Of(device);
  }
  Counters& counters() { return *counters_; }
  const std::shared_ptr<Counters>& shared_counters() const { return counters_; }
  const std::shared_ptr<SharedRegions>& regions() { return regions_; }  // thread-safe
  PeerEngine& peers() { return peers_; }  // its functions for user threads
  const std::shared_ptr<Inquiries>& inquiries() const { return callers_.inquiries(); }
  Callers& callers() { return callers_; }
  int64_t memory_bytes() const;

 private:
  static constexpr std::chrono::seconds kIdleSleep{10};
  static constexpr int kMoreSpins = 4;  // the background thread, after a tensor of a GPU
  static constexpr int64_t kWorthWaking = 1 << 20;  // bytes, where a core is to spare
  // While it lives, peers that hold back what this rank waits for are asked not to.
  class Awaiting {
   public:
    explicit Awaiting(Runtime& runtime);
    ~Awaiting();

   private:
    template <typename F>
    void ForEachPeer(F&& f) {
      for (int i = 0; segment_ != nullptr && i < segment_->shape().ranks; ++i) {
        if (i != me_) f(segment_->rank(i).bell);
      }
    }
    SharedSegment* segment_ = nullptr;  // null: nobody
    int me_ = 0;
  };
  Status Cycle();
  Status CycleSafely();
  bool Due();
  void SeeTime();
  static int64_t HoldBytes(const Topology& topology, const SharedSegment* segment);
  // One node, and each core is a rank's.
  bool no_spare_core() const { return hold_bytes_ > kWorthWaking; }
  bool RingWhenNeeded();
  bool CycleMoved();
  bool MuchTravels() const;
  bool Naps() const;
  bool LookAgain(std::chrono::microseconds spin);
  bool LookForMore();
  void HearTheLast();
  void Suspect(const Status& symptom);
  Status Cause() const;
  void Fail(const Status& status);
  void Background();
  void SleepInBackground();
  bool WaitPiece(Awaited& works, std::chrono::steady_clock::time_point until);
  void Lend(Awaited& works, std::chrono::steady_clock::time_point until);
  bool LendToSubmit();
  void GiveBack();
  void NoteLosses(std::span<Work* const> works);
  void MarkWaiting(Awaited& works);
  void FinishOthers();
  void SleepAsLender(Awaited& works, std::chrono::steady_clock::time_point until);
  void SleepWithoutBaton(uint32_t ticket);
  std::chrono::nanoseconds SleepLimit() const;
  std::chrono::nanoseconds OwnSleepLimit() const;
  bool MustWakeBackground() const;
  void BackOff();
  void FlushRings();
  uint32_t Sleeper() const;
  Status OrderTimeline(TimelineOrder order);
  void PassOrders();
  void Tune(const Batch& batch);
  bool parted() const;
  int local_rank() const;
  bool FindOut(const Lookout::Look& look);
  std::chrono::milliseconds Unanswered(uint64_t cycles, Standstill::Clock::time_point now);
  bool BackgroundEnds();
  void GiveUpHope();
  void LoseHope(Status why);
  std::unique_ptr<Lane> MakeLane(int32_t process_set, const std::vector<int>& ranks);

  Config config_;
  int rank_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<SharedRegions> regions_ = std::make_shared<SharedRegions>();
  std::shared_ptr<Recorder> recorder_;
  std::shared_ptr<Losses> losses_;
  std::shared_ptr<Gpus> gpus_;
  bool launched_;
  std::function<void(const std::string&)> on_fault_;
  std::function<void(int, const std::string&)> on_loss_;
  std::function<void()> on_letter_;
  Doorbell* bell_;
  bool may_lend_;
  bool crowded_;         // more ranks than cores
  bool yields_;          // whoever looks for progress does, between two looks
  bool cores_to_spare_;  // one for each rank's background thread, beside one for its program
  int64_t hold_bytes_;   // what a locked schedule's queue holds back
  std::atomic<bool> nudged_{false};
  // When a tensor of a GPU was submitted last.
  std::atomic<std::chrono::steady_clock::time_point> submitted_to_gpu_at_{
      std::chrono::steady_clock::time_point{}};
  Counter& lent_to_submits_;
  Counter& sent_over_mpi_;
  std::vector<std::unique_ptr<Transport>> transports_;
  bool polls_;  // one of them wakes nobody
  Fabric fabric_;
  OpTable ops_;
  Registry registry_;
  ProcessSets sets_;
  Queue queue_;
  Baton baton_;
  Callers callers_;
  Timeline timeline_;
  std::unique_ptr<TimeUse> time_use_;  // null unless time is to be explained
  // Touched by the holder of the baton only.
  Recycler recycler_;
  Negotiator negotiator_;
  Executor executor_;
  PeerEngine peers_;
  Letters letters_;  // the watch thread has its side of it
  std::unique_ptr<Autotuner> tuner_;  // null: nothing is tuned, or not here
  Status suspicion_, failure_;
  std::chrono::steady_clock::time_point judge_at_;  // the cause of suspicion_ is waited for so long
  bool moved_ = false, told_to_leave_ = false, told_to_give_up_ = false;
  bool hurry_ = false;  // the holder waits for a work: nothing is held back
  // From which on the queue rings.
  size_t wanted_ = 1;
  int64_t wanted_bytes_ = 0;
  std::vector<Entry> popped_;  // empty; its memory is used again
  std::chrono::steady_clock::time_point popped_at_, popped_of_gpu_at_;
  std::optional<std::chrono::steady_clock::time_point> hold_until_;
  PollWait poll_wait_;
  std::optional<Spread> spread_;  // of a node with several ranks
  AdaptiveSpin long_spin_;  // while MuchTravels()
  Pace pace_{fabric_.topology.local_size(rank_)};  // the same
  // When the background thread wakes by itself, while it sleeps.
  std::atomic<std::chrono::steady_clock::time_point> background_looks_{
      std::chrono::steady_clock::time_point{}};
  std::chrono::steady_clock::time_point leave_by_;
  // Set by Shutdown, read by the holder.
  std::atomic<bool> leaving_{false}, leaves_now_{false};  // now: without waiting for the others
  // Set by StartTimeline, StopTimeline and StartConfiguredTuning, read by the holder.
  Mutex orders_mutex_;
  std::vector<TimelineOrder> orders_ HORON_GUARDED_BY(orders_mutex_);
  uint64_t ordered_ HORON_GUARDED_BY(orders_mutex_) = 0;
  std::unique_ptr<Autotuner> new_tuner_ HORON_GUARDED_BY(orders_mutex_);
  std::atomic<bool> ordering_{false};
  // Set by GiveUp, read by the holder.
  Mutex given_up_mutex_;
  std::string given_up_ HORON_GUARDED_BY(given_up_mutex_);
  std::atomic<bool> giving_up_{false};
  std::atomic<bool> shut_down_{false}, describe_{false}, lost_{false}, stuck_{false};
  // Written by the holder, read by the watch thread.
  std::atomic<uint64_t> own_cycles_{0};
  std::atomic<uint64_t>* cycles_;          // those, or the segment's
  std::atomic<int> holder_{0};             // its thread
  std::atomic<int64_t> unanswered_ms_{0};  // since when on the steady clock; 0: not
  // Of the watch thread.
  Standstill standstill_;
  Lookout lookout_;
  Inquest inquest_;
  uint64_t looked_at_cycles_ = 0;
  std::chrono::milliseconds unanswered_{0};
  std::atomic<bool> without_hope_{false};
  mutable Mutex hope_mutex_;
  Status no_hope_ HORON_GUARDED_BY(hope_mutex_);
  std::promise<void> ended_;  // of the background thread
  std::thread background_;
};

}  // namespace horon
