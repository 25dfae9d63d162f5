// Staged ops on GPUs: what an op sees of its bucket, and how what it gives to ranks that no group
// reaches gets there.
#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "runtime/core/gpu_road.h"
#include "runtime/core/gpu_waits.h"
#include "runtime/transport/collectives.h"
#include "runtime/transport/lone_group.h"

namespace horon {
namespace {

// Of what comes from other nodes to be added, in the device's memory.
constexpr int64_t kMostRoom = 32 << 20;

// A part of what goes to a peer, or comes from it.
struct FarChunk {
  int peer = -1;
  std::byte *on_device = nullptr, *on_host = nullptr;
  int64_t bytes = 0;
  SharedEvent copied;  // on its way out: to the host; in: from there
  Transfer transfer;
};
using FarChunks = std::deque<FarChunk>;

// The first chunks of all peers, then the second ones, each time from the next rank on, or, of what
// comes, from the one before: so not all send to the same ranks at once, and of the chunks that are
// left some rank's first one is its peer's first.
enum class Goes { kOut, kIn };
FarChunks Cut(const Communicator& comm, const std::vector<Span>& spans, Goes goes) {
  FarChunks chunks;
  int64_t longest = 0;
  for (const Span& span : spans) longest = std::max(longest, span.bytes);
  for (int64_t begin = 0; begin < longest; begin += kGpuChunkBytes) {
    for (int step = 1; step < comm.size(); ++step) {
      const int to = goes == Goes::kOut ? comm.rank() + step : comm.rank() - step + comm.size();
      const auto peer = static_cast<size_t>(to % comm.size());
      const int64_t bytes = std::min(kGpuChunkBytes, spans[peer].bytes - begin);
      if (bytes <= 0) continue;
      FarChunk& chunk = chunks.emplace_back();
      chunk.peer = static_cast<int>(peer);
      chunk.on_device = spans[peer].data + begin;
      chunk.bytes = bytes;
    }
  }
  return chunks;
}

// Chunks on their way between the device and other nodes through places on the host, of which each
// direction has as many as there are chunks, but for a few at most: a copy to the host waits until
// what was sent from its place has gone, a receive until what came there is on the device. Both
// ends list their chunks alike (Cut), so nobody waits for what is behind another one for ever.
class FarPipeline final : public Waitable {
 public:
  FarPipeline(Communicator& comm, Stream& down, Stream& up, int& awaited,
              std::chrono::milliseconds limit, FarChunks out, FarChunks in)
      : comm_(comm),
        down_(down),
        up_(up),
        awaited_(awaited),
        limit_(limit),
        out_(std::move(out)),
        in_(std::move(in)) {
    for (const FarChunks* chunks : {&out_, &in_}) {
      for (const FarChunk& chunk : *chunks) place_ = std::max(place_, AlignedForGpus(chunk.bytes));
    }
  }
  ~FarPipeline() override { Await(false); }
  FarPipeline(const FarPipeline&) = delete;
  FarPipeline& operator=(const FarPipeline&) = delete;
  int64_t bytes() const { return place_ * static_cast<int64_t>(Places(out_) + Places(in_)); }
  void Start(Buffer staging) { staging_ = std::move(staging); }
  Buffer TakeStaging() { return std::move(staging_); }
  bool Ready() override {
    for (size_t before = Steps() - 1; status_.ok() && before != Steps();) {
      before = Steps();
      status_ = Advance();
    }
    const bool over = !status_.ok() || (sent_ == out_.size() && gone_ == out_.size() &&
                                        taken_ == in_.size());
    // The device wakes nobody; a transfer's end does.
    Await(!over && (sent_ < copied_ || (there_ < taken_ && asked_ < in_.size())));
    return over;
  }
  const Status& status() const { return status_; }  // once ready

 private:
  using FarClock = std::chrono::steady_clock;
  static size_t Places(const FarChunks& chunks) { return std::min(chunks.size(), kGpuPlaces); }
  std::byte* PlaceOf(size_t of) const {
    return staging_.data() + place_ * static_cast<int64_t>(of);
  }
  size_t Steps() const { return copied_ + sent_ + gone_ + asked_ + taken_ + there_; }
  void Await(bool device) {
    if (device != std::exchange(waits_, device)) awaited_ += device ? 1 : -1;
  }
  Status Advance() {
    HORON_TRY(Receive());
    return Send();
  }
  Status Send() {
    while (gone_ < sent_ && out_[gone_].transfer.done) HORON_TRY(out_[gone_++].transfer.status);
    for (; copied_ < out_.size() && copied_ - gone_ < Places(out_); ++copied_) {
      FarChunk& chunk = out_[copied_];
      chunk.on_host = PlaceOf(copied_ % Places(out_));
      HORON_TRY(down_.Copy(chunk.on_host, chunk.on_device, chunk.bytes));
      HORON_ASSIGN(chunk.copied, down_.Record());
      if (copied_ == sent_) since_ = FarClock::now();
    }
    for (; sent_ < copied_; ++sent_, since_ = FarClock::now()) {
      FarChunk& chunk = out_[sent_];
      HORON_ASSIGN(const bool copied, chunk.copied->Done());
      if (!copied) return InTime();
      HORON_TRY(comm_.Send(chunk.transfer, chunk.peer, Span{chunk.on_host, chunk.bytes}));
    }
    return Status::Ok();
  }
  Status Receive() {
    for (; there_ < taken_; ++there_) {
      HORON_ASSIGN(const bool copied, in_[there_].copied->Done());
      if (!copied) break;
    }
    for (; asked_ < in_.size() && asked_ - there_ < Places(in_); ++asked_) {
      FarChunk& chunk = in_[asked_];
      chunk.on_host = PlaceOf(Places(out_) + asked_ % Places(in_));
      HORON_TRY(comm_.Receive(chunk.transfer, chunk.peer, Span{chunk.on_host, chunk.bytes}));
    }
    for (; taken_ < asked_ && in_[taken_].transfer.done; ++taken_) {
      FarChunk& chunk = in_[taken_];
      HORON_TRY(chunk.transfer.status);
      HORON_TRY(up_.Copy(chunk.on_device, chunk.on_host, chunk.bytes));
      HORON_ASSIGN(chunk.copied, up_.Record());
    }
    return Status::Ok();
  }
  Status InTime() const {
    const bool late = limit_.count() > 0 && FarClock::now() - since_ > limit_;
    return late ? GpuTooLong(limit_) : Status::Ok();
  }

  Communicator& comm_;
  Stream &down_, &up_;
  int& awaited_;
  const std::chrono::milliseconds limit_;
  Buffer staging_;  // before the transfers that use it
  FarChunks out_, in_;
  int64_t place_ = 0;  // bytes
  size_t copied_ = 0, sent_ = 0, gone_ = 0;    // of out_, in this order
  size_t asked_ = 0, taken_ = 0, there_ = 0;   // of in_
  FarClock::time_point since_ = FarClock::now();  // the next one to be sent is waited for
  bool waits_ = false;
  Status status_;
};

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
  GpuGroup& group() override { return share_.group ? *share_.group : lone_; }
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
  LoneGroup lone_;
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
  if (share.way == Way::kGroup) co_return Status::Ok();  // nobody is far
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
// the baton, and not for long. They come to it together, behind messages of their bucket, which may
// take longer, or of another one that not all of them are in. Where no bucket that has the turn
// sends any, they come together anyway.
Task GpuRoad::MeetNode(Communicator& comm, const Share& share) {
  const bool messages = fabric_->topology.nodes() > 1 && !between_nodes_;
  if (!share.group || !messages) co_return Status::Ok();
  Communicator node = comm.Sub(comm.own_node(), kGpuNodeLevel);
  co_return co_await Barrier(node);
}

// MPI knows no streams: the device has to be done with what comes before, and what is enqueued
// after this finds everything there. Chunks as through the host, since the peer may go that way.
Task GpuRoad::ExchangeDirect(Communicator& comm, Share& share, SharedEvent before,
                             std::vector<Span> send, std::vector<Span> recv) {
  FarChunks outgoing = Cut(comm, send, Goes::kOut), incoming = Cut(comm, recv, Goes::kIn);
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

// A pipeline through pinned memory.
Task GpuRoad::ExchangeFar(Communicator& comm, Share& share, SharedEvent before,
                          std::vector<Span> send, std::vector<Span> recv) {
  HORON_CO_TRY(before->HoldBack(share.down->native()));
  HORON_CO_TRY(before->HoldBack(share.up->native()));
  FarPipeline pipeline(comm, *share.down, *share.up, awaited_, PatienceFor(share),
                       Cut(comm, send, Goes::kOut), Cut(comm, recv, Goes::kIn));
  auto staging = pinned_pool_->Take(pipeline.bytes());
  if (!staging.ok()) co_return staging.status();
  pipeline.Start(std::move(staging).value());
  co_await Until(pipeline);
  HORON_CO_TRY(pipeline.status());
  auto back = share.up->Record();
  if (!back.ok()) co_return back.status();
  HORON_CO_TRY(back.value()->HoldBack(share.stream->native()));
  co_return Retire(*share.up, pipeline.TakeStaging());
}

// Every rank adds a part of the block, by ascending node, and gives it to the others. What comes is
// added slice by slice, so that it needs little room.
Task GpuRoad::ReduceDirectly(Communicator& across, Share& share, std::byte* block, int64_t count,
                             Reduction reduction) {
  const int64_t element = SizeOf(reduction.dtype);
  const auto size = static_cast<size_t>(across.size()), me = static_cast<size_t>(across.rank());
  const auto parts = NearlyEqualParts(count, across.size(), across.size());
  const auto place = [&](size_t of) {
    return Span{block + parts[of].begin * element, parts[of].count * element};
  };
  const int64_t others = std::max(1, across.size() - 1), longest = parts[0].count * element;
  const int64_t slice = std::min(AlignedForGpus(longest), AlignedForGpus(kMostRoom / others));
  auto scratch = device_pool_->Take(slice * others);
  if (!scratch.ok()) co_return scratch.status();
  std::vector<Span> send(size), recv(size);
  for (int64_t begin = 0; begin < longest; begin += slice) {
    const auto cut = [&](size_t of) {
      const Span part = place(of);
      const int64_t from = std::min(begin, part.bytes);
      return Span{part.data + from, std::min(slice, part.bytes - from)};
    };
    const Span mine = cut(me);
    std::vector<const std::byte*> inputs;
    std::byte* room = scratch.value().data();
    for (size_t rank = 0; rank < size; ++rank) {
      inputs.push_back(rank == me ? mine.data : room);
      if (rank == me) continue;
      send[rank] = cut(rank);
      recv[rank] = {room, mine.bytes};
      room += slice;
    }
    auto before = share.stream->Record();
    if (!before.ok()) co_return before.status();
    Task scatter = ExchangeDirect(across, share, std::move(before).value(), send, recv);
    HORON_CO_TRY(co_await scatter);
    HORON_CO_TRY(share.stream->Reduce(reduction.kind, reduction.dtype, reduction.scale, inputs,
                                      mine.data, mine.bytes / element));
  }
  for (size_t rank = 0; rank < size; ++rank) {
    recv[rank] = rank == me ? Span{} : place(rank);
    send[rank] = rank == me ? Span{} : place(me);
  }
  auto before = share.stream->Record();
  if (!before.ok()) co_return before.status();
  Task gather = ExchangeDirect(across, share, std::move(before).value(), send, recv);
  HORON_CO_TRY(co_await gather);
  co_return Retire(*share.stream, std::move(scratch).value());
}

}  // namespace horon
