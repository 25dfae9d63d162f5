#include "runtime/core/gpu_road.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "runtime/base/log.h"
#include "runtime/core/gpu_owners.h"
#include "runtime/core/gpu_waits.h"

namespace horon {
namespace {

// Levels of Communicator::Sub; OverNodes has 1 and 2, a bucket without joined ranks the last.
constexpr int kMembersLevel = 5;

std::vector<int> Everyone(const Communicator& comm) {
  std::vector<int> all;
  for (int member = 0; member < comm.size(); ++member) all.push_back(member);
  return all;
}

bool EquallyMany(const std::vector<std::vector<int>>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](const auto& node) { return node.size() == nodes[0].size(); });
}

struct Told {
  int32_t version, between_nodes, reads_gpus;
  MemoryRegistration registration;
  GpuOwner owner;
};

// Whether messages to all members of other nodes may come out of a GPU's memory.
bool ReadsGpus(const Communicator& comm) {
  bool reads = true;
  for (int member = 0; member < comm.size(); ++member) {
    const bool far = comm.node_of(member) != comm.node_of(comm.rank());
    reads = reads && (!far || comm.reads_gpus(member));
  }
  return reads;
}

Status CheckInter(const Communicator& comm, const std::vector<Told>& told) {
  for (size_t r = 1; r < told.size(); ++r) {
    if (told[r].between_nodes == told[0].between_nodes) continue;
    const auto name = [&](size_t of) {
      return std::string(told[of].between_nodes != 0 ? "nccl" : "mpi") + " on rank " +
             std::to_string(comm.global(static_cast<int>(of)));
    };
    return Status::InvalidArgument("HORON_INTER is " + name(0) + " and " + name(r) +
                                   "; it must be the same on all ranks");
  }
  return Status::Ok();
}

Status CheckOwn(const Communicator& comm, std::span<const int> members,
                const std::vector<Told>& told) {
  std::vector<GpuOwner> owners;
  for (const int member : members) owners.push_back(told[static_cast<size_t>(member)].owner);
  const auto two = TwoOfOneGpu(owners);
  if (!two) return Status::Ok();
  return Status::InvalidArgument(
      "ranks " + std::to_string(comm.global(members[two->first])) + " and " +
      std::to_string(comm.global(members[two->second])) +
      " have their tensors on the same GPU: each needs its own, torch.cuda.set_device("
      "hvd.local_rank()), or HORON_NCCL=0, which takes the way through the host");
}

}  // namespace

GpuRoad::GpuRoad(const Fabric& fabric, std::shared_ptr<Gpus> gpus, bool between_nodes,
                 Counters& counters)
    : fabric_(&fabric),
      gpus_(std::move(gpus)),
      between_nodes_(between_nodes),
      grouped_(counters["gpu.buckets.group"]),
      between_(counters["gpu.buckets.nodes"]),
      hosted_(counters["gpu.buckets.host"]),
      direct_(counters["gpu.exchanges.direct"]),
      at_callers_(counters["gpu.buckets_on_callers_streams"]) {}

Task GpuRoad::Run(GpuBucket& bucket) { return RunInTurn(bucket, next_ticket_++); }

Task GpuRoad::RunInTurn(GpuBucket& bucket, uint64_t ticket) {
  GpuTurn turn(serving_, ticket);
  co_await Until(turn);
  Share& share = shares_[bucket.entries()[0].request().process_set];
  HORON_CO_TRY(Open(share));
  if (bucket.entries()[0].kept != Kept::kNot) co_return Keep(bucket, share);
  if (share.way == Way::kUnknown && !bucket.entries()[0].joined && bucket.comm().size() > 1) {
    Task decision = Decide(bucket.comm(), share);
    HORON_CO_TRY(co_await decision);
  }
  const Way way = WayOf(bucket, share);
  if (way == Way::kHost) turn.Pass();  // it enqueues nothing that other ranks' devices wait for
  Counter& counter = way == Way::kGroup ? grouped_ : way == Way::kNodes ? between_ : hosted_;
  counter.Add();
  const bool elementwise = bucket.op().elementwise().has_value();
  if (way != Way::kHost) {
    Task meeting = MeetNode(bucket.comm(), share);
    HORON_CO_TRY(co_await meeting);
  }
  if (way == Way::kGroup && elementwise) co_return Launch(bucket, share);
  Task rest = way == Way::kHost ? RunOnHost(bucket, share)
              : elementwise     ? ReduceOverNodes(bucket, share)
                                : RunStaged(bucket, share);
  co_return co_await rest;
}

Status GpuRoad::Open(Share& share) {
  gpu_ = gpus_ ? gpus_->gpu() : nullptr;
  if (!gpu_ || share.stream) return Status::Ok();
  if (!device_pool_) {
    device_pool_ = std::make_shared<Pool>(gpu_->MakeMemory());
    pinned_pool_ = std::make_shared<Pool>(gpu_->MakePinnedMemory());
    GpuNetwork* const network = gpus_->network();
    const bool wanted =
        network != nullptr && gpus_->choices().groups.registration != MemoryRegistration::kNone;
    auto memory = wanted ? network->MakeMemory(gpu_->device()) : nullptr;
    if (memory) registered_pool_ = std::make_shared<Pool>(std::move(memory));
  }
  if (!spare_.empty()) {
    share = std::move(spare_.back());
    spare_.pop_back();
    return Status::Ok();
  }
  HORON_ASSIGN(share.stream, gpu_->MakeStream(gpus_->choices().pairs));
  HORON_ASSIGN(share.down, gpu_->MakeStream(PairKernels::kFused));
  HORON_ASSIGN(share.up, gpu_->MakeStream(PairKernels::kFused));
  return Status::Ok();
}

// Every rank says which NCCL it has, and what it may be used for, so all come to the same way.
Task GpuRoad::Decide(Communicator& comm, Share& share) {
  GpuNetwork* const network = gpus_->network();
  std::vector<Told> told(static_cast<size_t>(comm.size()));
  const int32_t mine = network != nullptr ? network->version() : 0;
  MemoryRegistration registration = MemoryRegistration::kNone;
  if (registered_pool_)
    registration = std::min(gpus_->choices().groups.registration, network->registration());
  told[static_cast<size_t>(comm.rank())] = {
      mine, between_nodes_ ? 1 : 0, ReadsGpus(comm) ? 1 : 0, registration,
      OwnerOf(gpu_->identity(), mine, std::getenv("NCCL_HOSTID"),
              std::getenv("NCCL_MULTI_RANK_GPU_ENABLE"))};
  std::vector<Part> places;
  constexpr int64_t kBytes = sizeof(Told);
  for (int64_t r = 0; r < comm.size(); ++r) places.push_back({r * kBytes, kBytes});
  Task gather = Allgather(comm, reinterpret_cast<std::byte*>(told.data()), places);
  HORON_CO_TRY(co_await gather);
  HORON_CO_TRY(CheckInter(comm, told));
  const bool same = mine > 0 && std::all_of(told.begin(), told.end(), [&](const Told& other) {
                      return other.version == mine;
                    });
  share.direct = std::all_of(told.begin(), told.end(),
                             [](const Told& other) { return other.reads_gpus != 0; });
  const auto& nodes = comm.nodes();
  const bool together = comm.one_node() || between_nodes_;
  const bool apart = !together && EquallyMany(nodes);
  // An MPI that reads a GPU's memory need not read what NCCL allocates.
  const bool allowed = together || !share.direct;
  share.registration = allowed ? registration : MemoryRegistration::kNone;
  for (const Told& other : told)
    share.registration = std::min(share.registration, other.registration);
  Way way = Way::kHost;
  if (together && same) way = Way::kGroup;
  if (apart && (same || nodes[0].size() == 1)) way = Way::kNodes;
  std::vector<int> members = Everyone(comm);
  if (apart) members = nodes[static_cast<size_t>(comm.node_of(comm.rank()))];
  if (way != Way::kHost && members.size() > 1) {
    for (const auto& group : apart ? nodes : std::vector<std::vector<int>>{members})
      HORON_CO_TRY(CheckOwn(comm, group, told));
    Communicator group = comm.Sub(members, kMembersLevel);
    Task connect = Connect(group, share);
    HORON_CO_TRY(co_await connect);
  }
  if (way == Way::kHost)
    Log(LogLevel::kWarn, "gpu",
        "GPU tensors go through the host: the ranks do not all have the same NCCL (here: " +
            gpus_->nccl() + "), or nodes differ in size");
  share.way = way;
  co_return Status::Ok();
}

// The first member makes the id, and tells it to the others as any tensor.
Task GpuRoad::Connect(Communicator& members, Share& share) {
  struct {
    GpuGroupId id;
    uint8_t made = 0;
  } told;
  if (members.rank() == 0) {
    Result<GpuGroupId> id = gpus_->network()->MakeId();
    if (!id.ok()) Log(LogLevel::kError, "gpu", id.status().message());
    told.made = id.ok();
    if (id.ok()) told.id = id.value();
  }
  const Span span{reinterpret_cast<std::byte*>(&told), sizeof told};
  Task tell = Broadcast(members, {&span, 1}, 0);
  HORON_CO_TRY(co_await tell);
  if (told.made == 0) {
    co_return Status::Unavailable("rank " + std::to_string(members.global(0)) +
                                  " could not begin an NCCL communicator; its log says why");
  }
  auto group = gpus_->network()->Connect(told.id, members.size(), members.rank(), gpu_->device(),
                                         gpus_->choices().groups);
  if (!group.ok()) co_return group.status();
  share.group = std::move(group).value();
  GroupMet met(*share.group, awaited_);
  co_await Until(met);
  co_return met.status();
}

GpuRoad::Way GpuRoad::WayOf(GpuBucket& bucket, const Share& share) const {
  if (!gpu_ || bucket.entries()[0].joined) return Way::kHost;
  const bool elementwise = bucket.op().elementwise().has_value();
  const bool lone = bucket.comm().size() == 1;
  if (!elementwise && !bucket.op().on_gpus(bucket, lone || share.way == Way::kGroup))
    return Way::kHost;
  if (lone) return Way::kGroup;
  // Ops that only move bytes take any type, but a way is chosen by what all ranks know.
  return share.group && !share.group->Reduces(bucket.dtype()) ? Way::kHost : share.way;
}

// Of the events on one stream the last will do: all that were over when its recording began. Of
// those that several threads recorded at the same time any may be the last.
Status GpuRoad::Begin(GpuBucket& bucket, Stream& stream) const {
  std::map<const void*, uint64_t> begun;  // the last recording, by stream
  for (const Entry& entry : bucket.entries()) {
    if (!entry.ready || !entry.ready->one_stream) continue;
    uint64_t& last = begun[entry.ready->stream];
    last = std::max(last, entry.ready->begun);
  }
  std::set<const Event*> held;
  for (const Entry& entry : bucket.entries()) {
    if (!entry.ready) continue;
    if (entry.ready->one_stream && entry.ready->over < begun[entry.ready->stream]) continue;
    if (held.insert(entry.ready.get()).second) HORON_TRY(entry.ready->HoldBack(stream.native()));
  }
  return Status::Ok();
}

Status GpuRoad::Finish(GpuBucket& bucket, Stream& stream) {
  HORON_ASSIGN(const SharedEvent done, stream.Record());
  last_ = done;
  for (Entry& entry : bucket.entries()) {
    Output& output = entry.promise.output();
    output.done = done;
    if (output.on_gpu) output.on_gpu->WrittenBy(done);
  }
  return Status::Ok();
}

// Each collective of a group keeps its part of a device until all members' have come. Those of two
// groups that one device began in one order, and another in the other, would wait for each other.
Status GpuRoad::BeginGroup(GpuBucket& bucket, const Share& share, Stream& stream) const {
  HORON_TRY(Begin(bucket, stream));
  if (!share.group || !last_group_) return Status::Ok();
  // A caller's stream may be gone, and another one have its name.
  const bool own = !borrowed_.contains(last_group_->stream);
  if (own && last_group_->stream == stream.native()) return Status::Ok();
  return last_group_->HoldBack(stream.native());
}

Status GpuRoad::FinishGroup(GpuBucket& bucket, Share& share, Stream& stream) {
  HORON_TRY(Finish(bucket, stream));
  if (share.group) last_group_ = share.last = bucket.entries()[0].promise.output().done;
  return Status::Ok();
}

Status GpuRoad::Own(GpuBucket& bucket, size_t i, Shape shape) {
  Entry& entry = bucket.entries()[i];
  HORON_ASSIGN(Buffer buffer, device_pool_->Take(CountOf(shape) * SizeOf(bucket.dtype())));
  void* const stream = entry.ready ? entry.ready->stream : nullptr;
  Output& output = entry.promise.output();
  output.on_gpu = std::make_shared<GpuLoan>(gpu_, returns_, stream, std::move(buffer));
  output.users = false;
  output.owned_shape = std::move(shape);
  output.data = bucket.segments()[i].output = output.on_gpu->data();
  return Status::Ok();
}

Status GpuRoad::OwnOutputs(GpuBucket& bucket) {
  for (size_t i = 0; i < bucket.segments().size(); ++i) {
    const Segment& segment = bucket.segments()[i];
    if (segment.output == nullptr) HORON_TRY(Own(bucket, i, segment.request->shape));
  }
  return Status::Ok();
}

}  // namespace horon
