// Staged ops on GPUs: what an op sees of its bucket, and how what it gives to ranks that no group
// reaches gets there.
#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "runtime/core/gpu_road.h"
#include "runtime/core/gpu_waits.h"
#include "runtime/transport/collectives.h"

namespace horon {
namespace {

// A chunk is sent while the next one is copied to the host.
constexpr int64_t kFarChunkBytes = 4 << 20;

// A part of what goes to a peer, or comes from it.
struct FarChunk {
  int peer = -1;
  std::byte *on_device = nullptr, *on_host = nullptr;
  int64_t bytes = 0;
  SharedEvent arrived;  // on the host
  Transfer transfer;
};
using FarChunks = std::deque<FarChunk>;

// The first chunks of all peers, then the second ones. Their places on the host begin at *at; null:
// they stay on the device.
void Cut(const std::vector<Span>& spans, std::byte** at, FarChunks& chunks) {
  int64_t longest = 0;
  for (const Span& span : spans) longest = std::max(longest, span.bytes);
  for (int64_t begin = 0; begin < longest; begin += kFarChunkBytes) {
    for (size_t peer = 0; peer < spans.size(); ++peer) {
      const int64_t bytes = std::min(kFarChunkBytes, spans[peer].bytes - begin);
      if (bytes <= 0) continue;
      FarChunk& chunk = chunks.emplace_back();
      chunk.peer = static_cast<int>(peer);
      chunk.on_device = spans[peer].data + begin;
      chunk.bytes = bytes;
      if (at == nullptr) continue;
      chunk.on_host = *at;
      *at += bytes;
    }
  }
}

int64_t TotalOf(const std::vector<Span>& spans) {
  int64_t total = 0;
  for (const Span& span : spans) total += span.bytes;
  return total;
}

}  // namespace

// What an op sees: the bucket, in the device's memory.
class GpuRoad::OnGpu final : public GpuStage {
 public:
  OnGpu(GpuRoad& road, GpuBucket& bucket, Share& share)
      : road_(road), bucket_(bucket), share_(share) {
    const Communicator& comm = bucket.comm();
    near_ = comm.own_node();
    if (share.way != Way::kGroup) return;
    near_.resize(static_cast<size_t>(comm.size()));
    std::iota(near_.begin(), near_.end(), 0);
  }
  Stream& stream() override { return *share_.stream; }
  std::span<const int> near() const override { return near_; }
  GpuGroup& group() override { return *share_.group; }
  void CountSent(int rank, int64_t bytes) override { bucket_.CountSent(rank, bytes); }
  void SetAlgorithm(const char* name) override { bucket_.SetAlgorithm(name); }
  int PlaceOf(int rank) const override { return bucket_.PlaceOf(rank); }
  Communicator& comm() override { return bucket_.comm(); }
  std::span<Segment> segments() override { return bucket_.segments(); }
  DataType dtype() const override { return bucket_.dtype(); }
  double prescale() const override { return bucket_.prescale(); }
  double postscale() const override { return bucket_.postscale(); }
  int set_size() const override { return bucket_.set_size(); }
  Result<Buffer> Scratch(int64_t bytes) override { return road_.device_pool_->Take(bytes); }
  Status AllocateOutput(size_t i, Shape shape) override {
    return road_.Own(bucket_, i, std::move(shape));
  }
  void SetReceivedSplits(size_t i, std::vector<int64_t> splits) override {
    bucket_.SetReceivedSplits(i, std::move(splits));
  }
  std::unique_ptr<TensorState>& State(size_t i) override { return bucket_.State(i); }
  Status Retire(Buffer buffer) override { return road_.Retire(*share_.stream, std::move(buffer)); }
  Result<std::byte*> Block(int64_t bytes) override {
    return road_.Block(bucket_, share_, bytes);
  }
  Task Exchange(std::vector<Span> send, std::vector<Span> recv) override {
    return road_.Exchange(bucket_.comm(), share_, near_, std::move(send), std::move(recv));
  }

 private:
  GpuRoad& road_;
  GpuBucket& bucket_;
  Share& share_;
  std::vector<int> near_;
};

Task GpuRoad::RunStaged(GpuBucket& bucket, Share& share) {
  HORON_CO_TRY(BeginGroup(bucket, share, *share.stream));
  OnGpu stage(*this, bucket, share);
  Task run = bucket.op().RunOnGpus(stage);
  HORON_CO_TRY(co_await run);
  co_return FinishGroup(bucket, share, *share.stream);
}

// The group's part is enqueued before messages are waited for. They begin behind what was enqueued
// before it.
Task GpuRoad::Exchange(Communicator& comm, Share& share, std::span<const int> near,
                       std::vector<Span> send, std::vector<Span> recv) {
  std::vector<Span> to_near, from_near;
  for (const int member : near) {
    to_near.push_back(std::exchange(send[static_cast<size_t>(member)], {}));
    from_near.push_back(std::exchange(recv[static_cast<size_t>(member)], {}));
  }
  const bool far = TotalOf(send) + TotalOf(recv) > 0;
  SharedEvent before;
  if (far) {
    auto event = share.stream->Record();
    if (!event.ok()) co_return event.status();
    before = std::move(event).value();
  }
  if (share.group) HORON_CO_TRY(share.group->Exchange(to_near, from_near, *share.stream));
  if (far && share.direct) {
    Task direct = ExchangeDirect(comm, share, std::move(before), std::move(send), std::move(recv));
    HORON_CO_TRY(co_await direct);
  } else if (far) {
    Task rest = ExchangeFar(comm, share, std::move(before), std::move(send), std::move(recv));
    HORON_CO_TRY(co_await rest);
  }
  Task meeting = MeetNode(comm, share);
  co_return co_await meeting;
}

// What the group does next may be its first call of a kind, in which ranks wait for each other with
// the baton, and not for long: behind messages, which may take longer, they come to it together.
Task GpuRoad::MeetNode(Communicator& comm, const Share& share) {
  if (!share.group || share.way == Way::kGroup) co_return Status::Ok();
  Communicator node = comm.Sub(comm.own_node(), kGpuNodeLevel);
  co_return co_await Barrier(node);
}

// MPI knows no streams: the device has to be done with what comes before, and what is enqueued
// after this finds everything there. Chunks as through the host, since the peer may go that way.
Task GpuRoad::ExchangeDirect(Communicator& comm, Share& share, SharedEvent before,
                             std::vector<Span> send, std::vector<Span> recv) {
  FarChunks outgoing, incoming;
  Cut(send, nullptr, outgoing);
  Cut(recv, nullptr, incoming);
  EventDone ready(*before, awaited_, PatienceFor(share));
  co_await Until(ready);
  HORON_CO_TRY(ready.status());
  HORON_CO_TRY(gpu_->Attach());
  direct_.Add();
  for (FarChunk& chunk : incoming)
    HORON_CO_TRY(comm.Receive(chunk.transfer, chunk.peer, Span{chunk.on_device, chunk.bytes}));
  for (FarChunk& chunk : outgoing)
    HORON_CO_TRY(comm.Send(chunk.transfer, chunk.peer, Span{chunk.on_device, chunk.bytes}));
  for (FarChunk& chunk : incoming) HORON_CO_TRY(co_await Finished(chunk.transfer));
  for (FarChunk& chunk : outgoing) HORON_CO_TRY(co_await Finished(chunk.transfer));
  co_return Status::Ok();
}

// A pipeline through pinned memory: all copies to the host are enqueued at once, a chunk is sent as
// soon as it has arrived there, and what comes goes to the device at once. No send waits for a
// receive, so peers may list their chunks in whatever order.
Task GpuRoad::ExchangeFar(Communicator& comm, Share& share, SharedEvent before,
                          std::vector<Span> send, std::vector<Span> recv) {
  auto staging = pinned_pool_->Take(TotalOf(send) + TotalOf(recv));
  if (!staging.ok()) co_return staging.status();
  std::byte* at = staging.value().data();
  FarChunks outgoing, incoming;
  Cut(send, &at, outgoing);
  Cut(recv, &at, incoming);
  HORON_CO_TRY(before->HoldBack(share.down->native()));
  HORON_CO_TRY(before->HoldBack(share.up->native()));
  for (FarChunk& chunk : incoming)
    HORON_CO_TRY(comm.Receive(chunk.transfer, chunk.peer, Span{chunk.on_host, chunk.bytes}));
  for (FarChunk& chunk : outgoing) {
    HORON_CO_TRY(share.down->Copy(chunk.on_host, chunk.on_device, chunk.bytes));
    auto arrived = share.down->Record();
    if (!arrived.ok()) co_return arrived.status();
    chunk.arrived = std::move(arrived).value();
  }
  auto next = incoming.begin();
  for (FarChunk& chunk : outgoing) {
    EventDone arrived(*chunk.arrived, awaited_, PatienceFor(share));
    co_await Until(arrived);
    HORON_CO_TRY(arrived.status());
    HORON_CO_TRY(comm.Send(chunk.transfer, chunk.peer, Span{chunk.on_host, chunk.bytes}));
    for (; next != incoming.end() && next->transfer.done; ++next) {
      HORON_CO_TRY(next->transfer.status);
      HORON_CO_TRY(share.up->Copy(next->on_device, next->on_host, next->bytes));
    }
  }
  for (; next != incoming.end(); ++next) {
    HORON_CO_TRY(co_await Finished(next->transfer));
    HORON_CO_TRY(share.up->Copy(next->on_device, next->on_host, next->bytes));
  }
  auto back = share.up->Record();
  if (!back.ok()) co_return back.status();
  HORON_CO_TRY(back.value()->HoldBack(share.stream->native()));
  for (FarChunk& chunk : outgoing) HORON_CO_TRY(co_await Finished(chunk.transfer));
  co_return Retire(*share.up, std::move(staging).value());
}

// Every rank adds a part of the block, by ascending node, and gives it to the others.
Task GpuRoad::ReduceDirectly(Communicator& across, Share& share, std::byte* block, int64_t count,
                             Reduction reduction) {
  const int64_t element = SizeOf(reduction.dtype);
  const auto size = static_cast<size_t>(across.size()), me = static_cast<size_t>(across.rank());
  const auto parts = NearlyEqualParts(count, across.size(), across.size());
  const auto place = [&](size_t of) {
    return Span{block + parts[of].begin * element, parts[of].count * element};
  };
  const Span mine = place(me);
  const int64_t room = AlignedForGpus(mine.bytes);
  auto scratch = device_pool_->Take(room * static_cast<int64_t>(size));
  if (!scratch.ok()) co_return scratch.status();
  std::vector<Span> send(size), recv(size);
  std::vector<const std::byte*> inputs;
  for (size_t rank = 0; rank < size; ++rank) {
    const Span theirs{scratch.value().data() + static_cast<int64_t>(rank) * room, mine.bytes};
    inputs.push_back(rank == me ? mine.data : theirs.data);
    if (rank == me) continue;
    send[rank] = place(rank);
    recv[rank] = theirs;
  }
  auto before = share.stream->Record();
  if (!before.ok()) co_return before.status();
  Task scatter = ExchangeDirect(across, share, std::move(before).value(), send, recv);
  HORON_CO_TRY(co_await scatter);
  HORON_CO_TRY(share.stream->Reduce(reduction.kind, reduction.dtype, reduction.scale, inputs,
                                    mine.data, parts[me].count));
  for (size_t rank = 0; rank < size; ++rank) {
    recv[rank] = rank == me ? Span{} : place(rank);
    send[rank] = rank == me ? Span{} : mine;
  }
  before = share.stream->Record();
  if (!before.ok()) co_return before.status();
  Task gather = ExchangeDirect(across, share, std::move(before).value(), send, recv);
  HORON_CO_TRY(co_await gather);
  co_return Retire(*share.stream, std::move(scratch).value());
}

}  // namespace horon
