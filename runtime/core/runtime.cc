#include "runtime/core/runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "runtime/base/cores.h"
#include "runtime/base/shared_memory.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kBurst{100};
// The same without a core to spare: each report is a wake-up here and on other ranks.
constexpr std::chrono::microseconds kCrowdedBurst{5000};
// The background thread competes with the user's own threads for cores; a lender has nothing else
// to do.
constexpr std::chrono::microseconds kBackgroundSpin{5};
constexpr uint64_t kLookEvery = 64;  // cycles, for stalls, while something moves

std::vector<Transport*> Pointers(const std::vector<std::unique_ptr<Transport>>& owned) {
  std::vector<Transport*> pointers;
  for (const auto& transport : owned) pointers.push_back(transport.get());
  return pointers;
}

}  // namespace

Runtime::Runtime(RuntimeParts parts)
    : config_(std::move(parts.config)),
      rank_(parts.rank),
      counters_(std::move(parts.counters)),
      segment_(std::move(parts.segment)),
      recorder_(std::move(parts.recorder)),
      losses_(parts.losses ? std::move(parts.losses) : std::make_shared<Losses>()),
      gpus_(std::move(parts.gpus)),
      launched_(parts.launched),
      on_fault_(std::move(parts.on_fault)),
      on_loss_(std::move(parts.on_loss)),
      on_letter_(std::move(parts.on_letter)),
      bell_(segment_ ? &segment_->rank(parts.topology.local_rank(parts.rank)).bell
                     : &losses_->bell()),
      may_lend_(parts.may_lend && config_.lend),
      crowded_(parts.topology.local_size(parts.rank) > Cores()),
      yields_(crowded_ || parts.topology.nodes() > 1),
      cores_to_spare_(2 * parts.topology.local_size(parts.rank) <= Cores()),
      hold_bytes_(HoldBytes(parts.topology, segment_.get())),
      lent_to_submits_((*counters_)["gpu.submits_that_launched"]),
      sent_over_mpi_((*counters_)["mpi.bytes"]),
      transports_(std::move(parts.transports)),
      polls_(std::any_of(transports_.begin(), transports_.end(),
                         [](const auto& one) { return one->poll_interval().count() > 0; })),
      fabric_{parts.rank, std::move(parts.topology), std::move(parts.route),
              std::make_shared<Pool>(MakeHostMemory(), counters_)},
      ops_(config_.op_defaults),
      registry_(ops_),
      sets_(fabric_.topology.size()),
      timeline_(rank_, fabric_.topology.node_of(rank_) == fabric_.topology.node_of(0), *counters_),
      time_use_(config_.explain ? std::make_unique<TimeUse>(*counters_) : nullptr),
      negotiator_(config_, rank_, fabric_.topology, parts.control, ops_, registry_, sets_, callers_,
                  timeline_, *counters_, hold_bytes_),
      executor_(
          fabric_, Pointers(transports_), sets_,
          [this](int32_t set, const std::vector<int>& ranks) { return MakeLane(set, ranks); },
          *counters_, recorder_, timeline_, gpus_, config_.inter == "nccl", time_use_.get(),
          segment_),
      peers_(fabric_, segment_, config_.gossip_time, *counters_,
             {[this] { return timeline_.Stamp(); },
              [this](std::string row, std::string activity, int64_t begun, int64_t ended) {
                timeline_.Note({std::move(row), std::move(activity), begun, ended});
              }},
             [this](int rank) { return losses_->Has(rank); }),
      letters_(fabric_, [this](int rank) { return negotiator_.gone(rank); }),
      cycles_(segment_ ? &segment_->notice(local_rank()).cycles : &own_cycles_),
      standstill_(config_.stall_silence),
      lookout_(segment_, fabric_.topology, rank_, registry_, sets_, config_.stall_silence),
      inquest_(fabric_.topology, rank_, sets_) {
  if (segment_ && segment_->shape().ranks > 1)
    spread_.emplace(*segment_, fabric_.topology.local_rank(rank_), (*counters_)["cores.moves"]);
  background_ = std::thread([this] {
    Background();
    ended_.set_value_at_thread_exit();
  });
}

Runtime::~Runtime() { Shutdown(); }

// The first process sets inside one node get a lane each, as many as the segment has; later ones
// use messages. Numbers are never used again, so a lane never changes its members.
std::unique_ptr<Lane> Runtime::MakeLane(int32_t process_set, const std::vector<int>& ranks) {
  if (!segment_ || ranks.size() < 2) return nullptr;
  if (process_set >= segment_->shape().lanes) return nullptr;
  LaneGroup group{segment_,
                  regions_,
                  process_set,
                  {},
                  0,
                  &(*counters_)["lane.in_place"],
                  &(*counters_)["lane.swapped"],
                  &(*counters_)["lane.past_caches"],
                  config_.shm_far_ns,
                  crowded_};
  for (int r : ranks) {
    if (fabric_.topology.node_of(r) != fabric_.topology.node_of(rank_)) return nullptr;
    if (r == rank_) group.me = group.size();
    group.members.push_back(fabric_.topology.local_rank(r));
  }
  return std::make_unique<Lane>(std::move(group));
}

// --- the cycle: holder of the baton

// A lone tensor is taken at once. In a burst of asynchronous submits the queue is left to fill for
// a moment between two reports, or as long as HORON_CYCLE_TIME says; nobody who waits is kept
// waiting. Without a core to spare the moment is longer, unless somebody waits or asks on another
// rank of the node, or asks on this one. A rank alone reports to nobody.
bool Runtime::Due() {
  const bool alone = fabric_.topology.size() == 1 && config_.cycle_time.count() == 0;
  if (alone || hurry_ || baton_.wanted() || told_to_leave_ || negotiator_.locked() ||
      queue_.empty()) {
    hold_until_.reset();
    return true;
  }
  const bool no_core = no_spare_core() && config_.cycle_time.count() == 0;
  const auto now = Clock::now();
  if (!hold_until_) {
    hold_until_ =
        std::max(now + config_.cycle_time, popped_at_ + (no_core ? kCrowdedBurst : kBurst));
  }
  if (now < *hold_until_ && !(no_core && (bell_->Hold() || nudged_.exchange(false)))) return false;
  hold_until_.reset();
  return true;
}

Status Runtime::Cycle() {
  moved_ = false;
  if (Due()) {
    bell_->LetGo();
    queue_.PopAll(popped_);
    moved_ = !popped_.empty();
    if (moved_) popped_at_ = Clock::now();
    if (moved_ && popped_[0].ready) popped_of_gpu_at_ = popped_at_;
    if (const int64_t now = timeline_.Stamp()) {
      for (Entry& entry : popped_) entry.stamps.taken = now;
    }
    negotiator_.Add(popped_);
    popped_.clear();
  }
  HORON_ASSIGN(RecycledVector<Batch> batches, negotiator_.Advance(hurry_));
  if (moved_ || !batches.empty()) timeline_.MarkCycle(timeline_.Stamp());
  bool launches = false;  // on a GPU
  for (Batch& batch : batches) {
    if (batch.resume) negotiator_.TakeBack(executor_.TakeBack(*batch.resume));
    if (tuner_) Tune(batch);
    for (Bucket& bucket : PlanFusion(std::move(batch.entries), batch.tuning)) {
      launches = launches || bucket.entries[0].ready;
      executor_.Start(std::move(bucket));
    }
  }
  if (!negotiator_.holds_batches()) executor_.ForgetRemoved();
  if (launches) FlushRings();  // it may wait for ranks that have yet to hear of it
  SeeTime();
  HORON_ASSIGN(const bool progress, executor_.Advance(negotiator_.held()));
  const bool mixed = peers_.Advance();
  SeeTime();
  moved_ = moved_ || negotiator_.moved() || progress || mixed || !RingWhenNeeded();
  if (negotiator_.over()) queue_.Close(Status::Aborted(negotiator_.over_reason()));
  return Status::Ok();
}

void Runtime::SeeTime() {
  if (time_use_ == nullptr) return;
  const bool negotiates = executor_.idle() && !negotiator_.idle();
  const bool moves = executor_.idle() && !peers_.idle();
  time_use_->See(negotiates ? TimeUse::Stage::kNegotiation
                 : moves    ? TimeUse::Stage::kMoving
                            : executor_.stage());
}

bool Runtime::CycleMoved() {
  const Recycler::InUse recycles(recycler_);
  static thread_local const int thread = gettid();
  holder_.store(thread, std::memory_order_relaxed);
  cycles_->store(cycles_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (leaving_.load(std::memory_order_acquire) && !told_to_leave_) {
    told_to_leave_ = true;
    leave_by_ = Clock::now() + config_.shutdown_time;
    negotiator_.Leave();
  }
  if (giving_up_.load(std::memory_order_acquire) && !told_to_give_up_) {
    told_to_give_up_ = true;
    MutexLock lock(given_up_mutex_);
    negotiator_.GiveUp(given_up_);
  }
  if (suspicion_.ok()) {
    const Status status = losses_->any() ? Cause() : CycleSafely();
    if (status.ok()) {
      if (moved_) poll_wait_.Moved();
      return moved_;
    }
    Suspect(status);
    if (status.code() == Code::kUnavailable) HearTheLast();
  }
  const Status status = failure_.ok() ? Cause() : failure_;
  if (!status.ok()) Fail(status);  // and what came in since
  const bool moved = peers_.Advance();  // with ranks that live windows go on
  if (moved) poll_wait_.Moved();
  return moved;
}

Status Runtime::CycleSafely() {
  try {
    if (describe_.exchange(false, std::memory_order_relaxed))
      negotiator_.Describe(executor_.Describe());
    if (ordering_.exchange(false, std::memory_order_acquire)) PassOrders();
    HORON_TRY(Cycle());
    if (moved_ && cycles_->load(std::memory_order_relaxed) % kLookEvery != 0) return Status::Ok();
    const auto now = Clock::now();
    if (letters_.Advance(now)) on_letter_();
    const Status status = negotiator_.LookForStalls(
        now, {executor_.oldest_number(), executor_.oldest_moves()}, executor_.oldest());
    unanswered_ms_.store(negotiator_.unanswered_ms(), std::memory_order_relaxed);
    moved_ = moved_ || negotiator_.moved();  // it asks with the next cycle
    return status;
  } catch (const std::exception& e) {  // out of memory; the baton must be given on all the same
    return Status::Internal(std::string("the runtime stopped: ") + e.what());
  }
}

int Runtime::local_rank() const { return fabric_.topology.local_rank(rank_); }

// --- the background thread

bool Runtime::parted() const {
  if (!told_to_leave_) return false;
  if (told_to_give_up_ && launched_) return true;  // the others hear of it from the launcher
  if (leaves_now_.load(std::memory_order_relaxed)) return true;
  return !failure_.ok() || Clock::now() >= leave_by_ || (negotiator_.left() && executor_.idle());
}

void Runtime::Background() {
  pthread_setname_np(pthread_self(), "horon");
  baton_.Take();
  while (!parted()) {
    const bool moved = CycleMoved();
    if (baton_.wanted() ||
        (!moved && !LookAgain(std::min(config_.spin, kBackgroundSpin)) && !LookForMore()))
      SleepInBackground();
  }
  if (failure_.ok() && !executor_.idle()) {
    Fail(Status::Unavailable(
        "rank " + std::to_string(rank_) +
        " shut down while a collective was under way, and the others did not finish it in time"));
  }
  if (!failure_.ok()) {
    for (const auto& transport : transports_) transport->Leave();
  }
  Fail(Status::Aborted("Horon was shut down before this tensor was done"));
  if (told_to_give_up_) {
    for (const auto& transport : transports_) transport->Abandon();  // nobody answers any more
  }
  FlushRings();
  // The baton stays taken: from here on nobody runs the cycle.
}

void Runtime::SleepInBackground() {
  uint32_t ticket = bell_->Announce(Sleeper());
  bool moved = CycleMoved();
  if (moved && baton_.wanted()) {  // gives way to a lender, unless that gives up meanwhile
    ticket = bell_->Announce(Sleeper());  // what it waits for now may be another thing
    moved = CycleMoved() && !baton_.wanted();
  }
  if (moved || parted()) {
    bell_->Awake();
    return;
  }
  SleepWithoutBaton(ticket);
}

// --- user threads; Wait is in runtime_lending.cc

void Runtime::Describe() {
  describe_.store(true, std::memory_order_relaxed);
  bell_->Ring();
}

void Runtime::Shutdown() {
  if (shut_down_.exchange(true)) return;
  callers_.inquiries()->Close();
  leaving_.store(true, std::memory_order_release);
  bell_->Ring();
  if (!BackgroundEnds()) return;
  background_.join();
  timeline_.Close();
  registry_.Close(Status::Aborted("Horon was shut down; call init first"));
  if (segment_) segment_->MarkLeft(local_rank());
}

int64_t Runtime::memory_bytes() const {
  return fabric_.host_pool->held_bytes() + SharedMemory::OwnedBytes() +
         (segment_ ? segment_->share_bytes() : 0);
}

}  // namespace horon
