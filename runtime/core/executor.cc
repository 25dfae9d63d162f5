#include "runtime/core/executor.h"

#include <algorithm>

#include "runtime/core/executor_running.h"
#include "runtime/op/slices.h"

namespace horon {
namespace {

constexpr uint64_t kBucketsInFlight = 4;  // of one process set, over messages
// Of one process set's staged ops: bytes under way, and those of a bucket that need not wait.
constexpr int64_t kStagedInFlight = int64_t{32} << 20, kSmallStaged = int64_t{512} << 10;

// TakeBack must find every bucket of a locked schedule as it was: what a GPU was given has begun.
Status NotReturnable(Stage& stage) {
  return Status::Internal("tensor '" + stage.segments()[0].request->name +
                          "' is in a locked schedule, whose buckets are of ops on the host that "
                          "can be taken back");
}

}  // namespace

// Waits until few enough of the group's buckets are under way: what is packed for each takes
// memory, and a transport's own collectives, of which one runs at a time, match by their order.
class Executor::Turn final : public Waitable {
 public:
  Turn(const Group& group, uint64_t ticket, uint64_t most)
      : group_(group), ticket_(ticket), most_(most) {}
  bool Ready() override { return ticket_ < group_.served + most_; }

 private:
  const Group& group_;
  uint64_t ticket_, most_;
};

// Waits until those before it have begun, and few enough bytes are under way: the op's scratch goes
// by them. One bucket alone may have more.
class Executor::StagedTurn final : public Waitable {
 public:
  StagedTurn(const Group& group, uint64_t ticket, int64_t bytes)
      : group_(group), ticket_(ticket), bytes_(bytes) {}
  bool Ready() override {
    const bool fits = group_.staged_bytes == 0 || group_.staged_bytes + bytes_ <= kStagedInFlight;
    return ticket_ == group_.staged && fits;
  }

 private:
  const Group& group_;
  uint64_t ticket_;
  int64_t bytes_;
};

class Executor::GatePassed final : public Waitable {
 public:
  GatePassed(const StartGate& gate, const Locked& batch) : gate_(gate), batch_(batch) {}
  bool Ready() override { return gate_.Passed(batch_); }

 private:
  const StartGate& gate_;
  const Locked& batch_;
};

// Waits until no bucket that was started before has a tensor of this one's: an op counts its calls
// in their order, and a Task that has not come to its turn has counted nothing.
class Executor::NoneBefore final : public Waitable {
 public:
  NoneBefore(const RunningList& all, Running& mine) : all_(all), mine_(mine) {}
  bool Ready() override {
    for (const auto& other : all_) {
      if (other.get() == &mine_) return true;
      if (Shares(*other)) return false;
    }
    return true;
  }

 private:
  bool Shares(Running& other) const {
    const auto mine = mine_.entries();
    const auto theirs = other.entries();
    return std::any_of(theirs.begin(), theirs.end(), [&](const Entry& entry) {
      return std::any_of(mine.begin(), mine.end(),
                         [&](const Entry& own) { return own.what->key == entry.what->key; });
    });
  }
  const RunningList& all_;
  Running& mine_;
};

Executor::Executor(const Fabric& fabric, std::vector<Transport*> transports,
                   const ProcessSets& sets, LaneFactory make_lane, Counters& counters,
                   std::shared_ptr<Recorder> recorder, Timeline& timeline,
                   std::shared_ptr<Gpus> gpus, bool nccl_between_nodes, TimeUse* time_use,
                   std::shared_ptr<SharedSegment> segment)
    : fabric_(&fabric),
      transports_(std::move(transports)),
      sets_(&sets),
      make_lane_(std::move(make_lane)),
      recorder_(std::move(recorder)),
      timeline_(&timeline),
      time_use_(time_use),
      gate_(fabric, std::move(segment), counters),
      gpu_road_(fabric, std::move(gpus), nccl_between_nodes, counters),
      counters_(&counters),
      sent_to_(fabric.route.size()),
      buckets_(counters["executor.buckets"]),
      tensors_(counters["executor.tensors"]),
      fused_tensors_(counters["fusion.tensors"]),
      fused_bytes_(counters["fusion.bytes"]),
      bytes_(counters["executor.bytes"]) {}

Executor::~Executor() = default;

void Executor::Start(Bucket bucket) {
  using Order = Running::Order;
  Group& group = GroupOf(bucket.entries[0].request().process_set, bucket.entries[0].ranks);
  if (bucket.entries[0].kept != Kept::kNot) {
    Keep(std::move(bucket), group);
    return;
  }
  Connect(bucket.entries[0].request().process_set, group);
  const auto sequence = static_cast<Tag>(group.sequence++ % 4095 + 1);
  const Tag set = static_cast<Tag>(bucket.entries[0].request().process_set % ProcessSets::kSlots);
  const Tag base = ((set << 12) | sequence) << 7;
  Op* op = bucket.entries[0].what->op;
  buckets_.Add();
  tensors_.Add(static_cast<int64_t>(bucket.entries.size()));
  bytes_.Add(bucket.bytes);
  const int64_t bytes = bucket.bytes;
  Record(recorder_, EventKind::kStarted, bucket.entries[0].what->key, bytes);

  auto running = std::make_unique<Running>(*this, std::move(bucket), group, base);
  running->number = ++started_;
  if (running->away()) {
    op->Skip(*running);
    running->Finish(Status::Ok());
    return;
  }
  const auto elementwise = op->elementwise();
  const bool returnable = !running->on_gpu() && op->lockable(running->entries()[0].request());
  const Status prepared = running->locked().number > 0 && !returnable ? NotReturnable(*running)
                          : running->on_gpu()                         ? Status::Ok()
                          : elementwise ? PrepareOutputs(*running)
                                        : running->FillMissingInputs();
  if (!prepared.ok()) {
    fault_ = prepared;  // the others run this bucket: nothing after it can be trusted
    running->Finish(prepared);
    return;
  }
  if (running->on_gpu()) {
    running->algorithm = "GPU";
    running->Run(gpu_road_.Run(*running));
  } else if (elementwise) {
    const bool streams = running->comm().lane() != nullptr;
    if (!streams) gated_ = running->locked().number;
    StartLocked(*running, &*elementwise);
    if (!running->cargo || !running->cargo->whole())
      running->Place(streams ? Order::kLane : Order::kMessages,
                     streams ? group.lane->TakeTicket() : group.next_ticket++);
    running->Run(RunElementwise(*running, *elementwise));
  } else if (running->comm().lane() != nullptr && op->TakesLane(*running)) {
    running->Place(Order::kLane, group.lane->TakeTicket());
    StartLocked(*running);
    running->Run(RunOnLane(*running, *op));
  } else {
    if (op->fusable() && bytes > kSmallStaged)
      running->Place(Order::kStaged, group.next_staged++);
    gated_ = running->locked().number;
    StartLocked(*running);
    running->Run(RunStaged(*running, *op, bytes));
  }
  running_.push_back(std::move(running));
}

// Other ranks do so at another time, or have: it takes no place among the buckets that all run.
void Executor::Keep(Bucket bucket, Group& group) {
  const int64_t bytes = bucket.bytes;
  auto running = std::make_unique<Running>(*this, std::move(bucket), group, 0);
  running->number = ++started_;
  running->algorithm = "left out: a rank was late";
  if (!running->away())
    Record(recorder_, EventKind::kStarted, running->entries()[0].what->key, bytes);
  running->Run(RunKept(*running));
  running_.push_back(std::move(running));
}

Task Executor::RunKept(Running& running) {
  NoneBefore none(running_, running);
  co_await Until(none);
  if (running.entries()[0].kept == Kept::kWithAll) running.op().Skip(running);
  if (running.away()) co_return Status::Ok();
  if (running.on_gpu()) {
    Task on_gpu = gpu_road_.Run(running);
    co_return co_await on_gpu;
  }
  HORON_CO_TRY(PrepareOutputs(running));
  const double scale = running.prescale() * running.postscale();
  for (const Segment& s : running.segments())
    ScaleInto(running.dtype(), scale, s.input, s.output, s.count);
  co_return Status::Ok();
}

Result<bool> Executor::Advance(bool held) {
  bool moved = false;
  HORON_TRY(gpu_road_.Progress());
  for (Transport* transport : transports_) {
    HORON_TRY(fault_);
    HORON_ASSIGN(const bool progress, transport->Progress());
    moved = moved || progress;
  }
  HORON_ASSIGN(const bool heard, gate_.Advance());
  moved = moved || heard;
  for (auto it = running_.begin(); it != running_.end() && !held;) {
    Running& running = **it;
    moved = running.Advance() || moved;
    if (!running.task().done()) {
      ++it;
      continue;
    }
    const Status status = running.task().status();
    const bool fault = status.code() == Code::kUnavailable || status.code() == Code::kInternal;
    if (fault && running.comm().size() > 1) {  // on this rank only, perhaps
      fault_ = status;
      break;  // it fails with all others, once the cause is known
    }
    running.Withdraw();
    running.Finish(status);
    it = running_.erase(it);
  }
  HORON_TRY(fault_);
  return moved;
}

Entries Executor::TakeBack(uint64_t first) {
  using Order = Running::Order;
  Entries back;
  while (!running_.empty() && running_.back()->locked().number > first) {
    Running& running = *running_.back();
    running.Withdraw();
    for (Entry& entry : running.TakeEntries()) back.push_back(std::move(entry));
    Group& group = running.group();
    --group.sequence;
    if (running.order == Order::kLane) group.lane->GiveBack(running.ticket);
    if (running.order == Order::kMessages) group.next_ticket = running.ticket;
    if (running.order == Order::kStaged) group.next_staged = running.ticket;
    running_.pop_back();
  }
  gate_.Close(first);
  gated_ = 0;
  const auto all = groups_.find(0);
  if (all != groups_.end() && all->second.lane) all->second.lane->Skip();
  return back;
}

TimeUse::Stage Executor::stage() const {
  if (running_.empty()) return TimeUse::Stage::kNothing;
  return running_.front()->awaits_others() ? TimeUse::Stage::kOthers : TimeUse::Stage::kMoving;
}

const Request* Executor::oldest() const {
  return running_.empty() ? nullptr : running_.front()->segments()[0].request;
}

int64_t Executor::oldest_bytes() const {
  return running_.empty() ? 0 : running_.front()->bytes();
}

uint64_t Executor::oldest_number() const { return running_.empty() ? 0 : running_.front()->number; }

uint64_t Executor::oldest_moves() const { return running_.empty() ? 0 : running_.front()->moves(); }

std::vector<std::string> Executor::Describe() const {
  std::vector<std::string> lines;
  for (const auto& running : running_) {
    const size_t more = running->segments().size() - 1;
    lines.push_back("tensor '" + running->segments()[0].request->name + "'" +
                    (more > 0 ? " and " + std::to_string(more) + " more, fused with it," : "") +
                    " began, and waits for " + (running->on_gpu() ? "the GPU, for " : "") +
                    "other ranks or for bytes on their way");
  }
  return lines;
}

Counter& Executor::SentTo(int rank) {
  Counter*& counter = sent_to_[static_cast<size_t>(rank)];
  if (counter == nullptr) counter = &(*counters_)["gossip.bytes.to." + std::to_string(rank)];
  return *counter;
}

void Executor::FailAll(const Status& status, const std::function<void()>& alive) {
  gate_.Stop();
  for (auto& running : running_) running->Withdraw();
  // After a shutdown what GPUs have been given ends well.
  if (status.code() != Code::kAborted) gpu_road_.Abort(alive);
  for (auto& running : running_) running->Finish(status, /*cut_off=*/true);
  running_.clear();
}

Reduction Executor::ReductionOf(const Running& running, Elementwise kind) {
  Reduction reduction{running.dtype(), kind.kind, running.postscale()};
  if (kind.average) reduction.scale /= running.set_size();
  return reduction;
}

// A locked batch has started with the last of its buckets, whose beginning goes with the word: the
// same on all ranks. Not where it is added in another order: flattened, or by MPI.
void Executor::StartLocked(Running& running, const Elementwise* kind) {
  const uint64_t number = running.locked().number;
  if (number == 0 || !running.last() || gated_ != number) return;  // lanes show it themselves
  const Communicator& comm = running.comm();
  const bool carries = kind != nullptr && comm.lane() == nullptr && running.tuning().hierarchical &&
                       comm.size() == fabric_->topology.size() &&
                       !ReducesWhole(comm, ReductionOf(running, *kind));
  if (!carries) return gate_.Start(running.locked());
  running.cargo.emplace(running.segments(), ReductionOf(running, *kind), running.prescale(),
                        gate_.cargo_limits(), running.phases());
  gate_.Start(running.locked(), &*running.cargo);
}

Task Executor::RunElementwise(Running& running, Elementwise kind) {
  Communicator& comm = running.comm();
  if (!running.tuning().hierarchical) comm.Flatten();
  const Reduction reduction = ReductionOf(running, kind);
  const bool whole = ReducesWhole(comm, reduction);
  running.algorithm = comm.lane() != nullptr ? "through shared memory"
                      : whole                ? "a block reduced by MPI"
                                             : "messages in slices";
  if (comm.lane() != nullptr) {
    Task streamed = Stream(running, reduction);
    co_return co_await streamed;
  }
  if (running.cargo) {
    co_await Until(*running.cargo);
    if (running.cargo->whole()) {
      running.algorithm = "with the word that all have started it";
      CountFused(running);
      co_return Status::Ok();
    }
  } else if (running.locked().number > 0) {
    GatePassed all_have_started(gate_, running.locked());
    co_await Until(all_have_started);
  }
  Group& group = running.group();
  Turn turn(group, running.ticket, whole ? 1 : kBucketsInFlight);
  co_await Until(turn);
  Task sliced = RunSlices(running, reduction);
  const Status status = co_await sliced;
  ++group.served;
  co_return status;
}

Task Executor::RunStaged(Running& running, Op& op, int64_t bytes) {
  Group& group = running.group();
  if (running.locked().number > 0) {
    GatePassed all_have_started(gate_, running.locked());
    co_await Until(all_have_started);
  }
  const bool waits = running.order == Running::Order::kStaged;
  if (waits) {
    StagedTurn turn(group, running.ticket, bytes);
    co_await Until(turn);
    ++group.staged;
    group.staged_bytes += bytes;
  }
  running.Follow();
  Task run = op.Run(running);
  const Status status = co_await run;
  if (waits) group.staged_bytes -= bytes;
  co_return status;
}

Task Executor::RunOnLane(Running& running, Op& op) {
  Lane& lane = *running.comm().lane();
  Task turn = lane.Await(running.ticket, running.phases());
  HORON_CO_TRY(co_await turn);
  Task run = op.Run(running);
  HORON_CO_TRY(co_await run);
  lane.Served();
  co_return Status::Ok();
}

Task Executor::Stream(Running& running, const Reduction& reduction) {
  RecycledVector<LaneTensor> tensors;
  tensors.reserve(running.segments().size());
  for (const Segment& s : running.segments()) tensors.push_back({s.input, s.output, s.count});
  const uint64_t bucket = BucketWord(running.segments(), tensors.size());
  return running.comm().lane()->Allreduce(running.ticket, std::move(tensors),
                                          {reduction.dtype, reduction.kind, running.prescale(),
                                           reduction.scale, bucket, running.tuning().chunk_bytes},
                                          running.phases());
}

void Executor::CountFused(Running& running) {
  if (running.segments().size() == 1) return;
  fused_tensors_.Add(static_cast<int64_t>(running.segments().size()));
  fused_bytes_.Add(running.bytes());
}

Task Executor::RunSlices(Running& running, Reduction reduction) {
  if (running.comm().size() == 1) {
    for (const Segment& s : running.segments()) {
      ScaleInto(reduction.dtype, running.prescale(), s.input, s.output, s.count);
      if (reduction.scale != 1.0)
        ScaleInto(reduction.dtype, reduction.scale, s.output, s.output, s.count);
    }
    co_return Status::Ok();
  }
  CountFused(running);
  const int64_t done = running.cargo ? running.cargo->bytes() : 0;
  Slices slices(running, reduction, running.tuning().slice_bytes, running.phases(), done);
  while (!slices.done()) co_await Until(slices);
  co_return slices.status();
}

}  // namespace horon
