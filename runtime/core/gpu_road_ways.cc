// The ways of a bucket on a GPU: over one group, over nodes, through the host.
#include <algorithm>
#include <vector>

#include "runtime/core/gpu_road.h"
#include "runtime/core/gpu_waits.h"

namespace horon {
namespace {

constexpr int kPlainLevel = 6, kAcrossLevel = 4;

Reduction ReductionOf(GpuBucket& bucket) {
  const Elementwise kind = *bucket.op().elementwise();
  Reduction reduction{bucket.dtype(), kind.kind, bucket.postscale()};
  if (kind.average) reduction.scale /= bucket.set_size();
  return reduction;
}

// Where the segments lie in a fused block, in bytes, and the elements of the block.
struct BucketPlaces {
  std::vector<int64_t> at;
  int64_t count = 0;
  explicit BucketPlaces(GpuBucket& bucket) {
    const int64_t element = SizeOf(bucket.dtype());
    int64_t bytes = 0;
    for (const Segment& segment : bucket.segments()) {
      at.push_back(bytes);
      bytes += AlignedForGpus(segment.count * element);
    }
    count = bytes / element;
  }
  std::vector<Piece> In(GpuBucket& bucket, std::byte* block) const {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < at.size(); ++i) {
      const Segment& segment = bucket.segments()[i];
      pieces.push_back({segment.input, block + at[i], segment.count});
    }
    return pieces;
  }
  std::vector<Piece> Out(GpuBucket& bucket, const std::byte* block) const {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < at.size(); ++i) {
      const Segment& segment = bucket.segments()[i];
      pieces.push_back({block + at[i], segment.output, segment.count});
    }
    return pieces;
  }
};

}  // namespace

// Nothing is exchanged.
Status GpuRoad::Keep(GpuBucket& bucket, Share& share) {
  HORON_TRY(Begin(bucket, *share.stream));
  HORON_TRY(OwnOutputs(bucket));
  std::vector<Piece> pieces;
  for (const Segment& s : bucket.segments()) pieces.push_back({s.input, s.output, s.count});
  const DataType dtype = bucket.dtype();
  HORON_TRY(share.stream->Move(dtype, dtype, bucket.prescale() * bucket.postscale(), pieces));
  return Finish(bucket, *share.stream);
}

// The caller's own, for one tensor of a call that blocks, on that call's thread: no stream waits
// for another one then, there and back. Several use the block, whose stream is the share's.
Stream& GpuRoad::StreamOf(GpuBucket& bucket, const Share& share) {
  const Entry& entry = bucket.entries()[0];
  if (bucket.segments().size() != 1 || !entry.ready || !entry.promise.called_here())
    return *share.stream;
  std::shared_ptr<Stream>& stream = borrowed_[entry.ready->stream];
  if (!stream) stream = gpu_->Borrow(entry.ready->stream);
  if (!stream) return *share.stream;
  at_callers_.Add();
  return *stream;
}

Status GpuRoad::Launch(GpuBucket& bucket, Share& share) {
  Stream& stream = StreamOf(bucket, share);
  HORON_TRY(BeginGroup(bucket, share, stream));
  HORON_TRY(OwnOutputs(bucket));
  const Reduction reduction = ReductionOf(bucket);
  HORON_TRY(bucket.segments().size() == 1 ? ReduceOne(bucket, share, reduction, stream)
                                          : Reduce(bucket, share, reduction));
  return FinishGroup(bucket, share, stream);
}

Status GpuRoad::Reduce(GpuBucket& bucket, Share& share, const Reduction& reduction) {
  const bool alone = bucket.comm().size() == 1;
  const DataType dtype = reduction.dtype;
  const BucketPlaces places(bucket);
  HORON_ASSIGN(std::byte* const block,
               BlockAlike(bucket, share, places.count * SizeOf(dtype)));
  Stream& stream = *share.stream;
  HORON_TRY(stream.Move(dtype, dtype, bucket.prescale(), places.In(bucket, block)));
  if (!alone) {
    HORON_TRY(share.group->Allreduce(dtype, reduction.kind, block, places.count, stream));
  }
  return stream.Move(dtype, dtype, reduction.scale, places.Out(bucket, block));
}

// In its own output.
Status GpuRoad::ReduceOne(GpuBucket& bucket, Share& share, const Reduction& reduction,
                          Stream& stream) {
  const Segment& s = bucket.segments()[0];
  const DataType dtype = reduction.dtype;
  const Piece in{s.input, s.output, s.count}, out{s.output, s.output, s.count};
  if (s.input != s.output || bucket.prescale() != 1.0)
    HORON_TRY(stream.Move(dtype, dtype, bucket.prescale(), {&in, 1}));
  if (bucket.comm().size() > 1)
    HORON_TRY(share.group->Allreduce(dtype, reduction.kind, s.output, s.count, stream));
  if (reduction.scale == 1.0) return Status::Ok();
  return stream.Move(dtype, dtype, reduction.scale, {&out, 1});
}

// Reduce-scatter inside the node, the exchange between ranks of equal local rank, allgather inside
// the node. Every part is as long as the others.
Task GpuRoad::ReduceOverNodes(GpuBucket& bucket, Share& share) {
  Communicator& comm = bucket.comm();
  const Reduction reduction = ReductionOf(bucket);
  const DataType dtype = reduction.dtype;
  const int64_t element = SizeOf(dtype);
  const auto& nodes = comm.nodes();
  const auto& mine = nodes[static_cast<size_t>(comm.node_of(comm.rank()))];
  const auto local = static_cast<size_t>(comm.Sub(mine, kGpuNodeLevel).rank());
  const BucketPlaces places(bucket);
  const auto owners = static_cast<int64_t>(mine.size());
  const int64_t part_bytes = AlignedForGpus((places.count * element + owners - 1) / owners);
  HORON_CO_TRY(BeginGroup(bucket, share, *share.stream));
  HORON_CO_TRY(OwnOutputs(bucket));
  const Result<std::byte*> reserved = BlockAlike(bucket, share, part_bytes * owners);
  if (!reserved.ok()) co_return reserved.status();
  std::byte* const block = reserved.value();
  std::byte* const part = block + part_bytes * static_cast<int64_t>(local);
  const int64_t part_count = part_bytes / element;
  Stream& stream = *share.stream;
  HORON_CO_TRY(stream.Move(dtype, dtype, bucket.prescale(), places.In(bucket, block)));
  if (share.group)
    HORON_CO_TRY(
        share.group->ReduceScatter(dtype, reduction.kind, block, part, part_count, stream));
  std::vector<int> members;
  for (const auto& node : nodes) members.push_back(node[local]);
  Communicator across = comm.Sub(members, kAcrossLevel);
  const bool direct = share.direct && nodes.size() <= Stream::kMostInputs;
  Task between = direct ? ReduceDirectly(across, share, part, part_count, reduction)
                        : ExchangeBetween(across, share, part, part_count, reduction);
  HORON_CO_TRY(co_await between);
  Task meeting = MeetNode(comm, share);
  HORON_CO_TRY(co_await meeting);
  if (share.group) HORON_CO_TRY(share.group->Allgather(part, block, part_bytes, stream));
  HORON_CO_TRY(stream.Move(dtype, dtype, 1.0, places.Out(bucket, block)));
  co_return FinishGroup(bucket, share, *share.stream);
}

// A pipeline: a chunk goes between the nodes as soon as it has arrived on the host, while the next
// ones are copied there, and back to the device beside them. On the device a place on the host is
// written to again once what was there is back.
Task GpuRoad::ExchangeBetween(Communicator& across, Share& share, std::byte* part, int64_t count,
                              Reduction reduction) {
  const int64_t element = SizeOf(reduction.dtype), chunk = kGpuChunkBytes / element;
  const auto chunks = static_cast<size_t>((count + chunk - 1) / chunk);
  const size_t places = std::min(chunks, kGpuPlaces);
  auto staging =
      pinned_pool_->Take(std::min(count, chunk) * element * static_cast<int64_t>(places));
  if (!staging.ok()) co_return staging.status();
  std::byte* const host = staging.value().data();
  const auto on_host = [&](size_t i) {
    return host + static_cast<int64_t>(i % places) * std::min(count, chunk) * element;
  };
  const auto on_device = [&](size_t i) {
    const int64_t at = static_cast<int64_t>(i) * chunk;
    return Span{part + at * element, std::min(chunk, count - at) * element};
  };
  auto reduced = share.stream->Record();
  if (!reduced.ok()) co_return reduced.status();
  HORON_CO_TRY(reduced.value()->HoldBack(share.down->native()));
  std::vector<SharedEvent> arrivals;
  const auto copy_next = [&]() -> Status {
    const Span next = on_device(arrivals.size());
    HORON_TRY(share.down->Copy(on_host(arrivals.size()), next.data, next.bytes));
    HORON_ASSIGN(auto arrival, share.down->Record());
    arrivals.push_back(std::move(arrival));
    return Status::Ok();
  };
  while (arrivals.size() < places) HORON_CO_TRY(copy_next());
  for (size_t i = 0; i < chunks; ++i) {
    EventDone arrived(*arrivals[i], awaited_, PatienceFor(share));
    co_await Until(arrived);
    HORON_CO_TRY(arrived.status());
    const Span there = on_device(i);
    Task exchange = Allreduce(across, on_host(i), there.bytes / element, reduction);
    HORON_CO_TRY(co_await exchange);
    HORON_CO_TRY(arrivals[i]->HoldBack(share.up->native()));
    HORON_CO_TRY(share.up->Copy(there.data, on_host(i), there.bytes));
    if (arrivals.size() == chunks) continue;
    auto back = share.up->Record();
    if (!back.ok()) co_return back.status();
    HORON_CO_TRY(back.value()->HoldBack(share.down->native()));
    HORON_CO_TRY(copy_next());
  }
  auto back = share.up->Record();
  if (!back.ok()) co_return back.status();
  HORON_CO_TRY(back.value()->HoldBack(share.stream->native()));
  co_return Retire(*share.up, std::move(staging).value());
}

Task GpuRoad::RunOnHost(GpuBucket& bucket, Share& share) {
  if (bucket.op().elementwise() && gpu_) co_return co_await ReduceOnHost(bucket, share);
  if (!gpu_) {  // this rank has joined before it had a tensor on any GPU
    HORON_CO_TRY(bucket.FillMissingInputs());
    co_return co_await bucket.op().Run(bucket);
  }
  int64_t bytes = 0;
  for (const Segment& s : bucket.segments())
    bytes += AlignedForGpus(s.count * SizeOf(bucket.dtype()));
  auto staging = pinned_pool_->Take(bytes);
  if (!staging.ok()) co_return staging.status();
  HORON_CO_TRY(Begin(bucket, *share.down));
  std::byte* at = staging.value().data();
  for (Segment& s : bucket.segments()) {
    const int64_t length = s.count * SizeOf(bucket.dtype());
    if (s.input != nullptr && length > 0) {
      HORON_CO_TRY(share.down->Copy(at, s.input, length));
      s.input = at;
    }
    if (s.output != nullptr) s.output = at;  // in place, as ops allow
    at += AlignedForGpus(length);
  }
  auto copied = share.down->Record();
  if (!copied.ok()) co_return copied.status();
  EventDone arrived(*copied.value(), awaited_, PatienceFor(share));
  co_await Until(arrived);
  HORON_CO_TRY(arrived.status());
  HORON_CO_TRY(bucket.FillMissingInputs());
  Task run = bucket.op().Run(bucket);
  HORON_CO_TRY(co_await run);
  HORON_CO_TRY(Begin(bucket, *share.up));
  HORON_CO_TRY(ReturnOutputs(bucket, *share.up));
  HORON_CO_TRY(Retire(*share.up, std::move(staging).value()));
  co_return Finish(bucket, *share.up);
}

// From the host's memory to the user's, or to memory of the device that the works own.
Status GpuRoad::ReturnOutputs(GpuBucket& bucket, Stream& stream) {
  for (size_t i = 0; i < bucket.segments().size(); ++i) {
    Entry& entry = bucket.entries()[i];
    Output& output = entry.promise.output();
    const std::byte* const result = bucket.segments()[i].output;
    // Nothing came out; or nobody asked, because this rank has joined.
    if (result == nullptr || !entry.ready) continue;
    Buffer owned = std::move(output.owned);
    const Shape shape = output.owned_shape.empty() ? entry.request().shape : output.owned_shape;
    if (entry.output == nullptr) HORON_TRY(Own(bucket, i, shape));
    HORON_TRY(stream.Copy(output.data, result, CountOf(shape) * SizeOf(bucket.dtype())));
    HORON_TRY(Retire(stream, std::move(owned)));
  }
  return Status::Ok();
}

// Through one block of the host's memory: its transports see neither tensors nor a device.
Task GpuRoad::ReduceOnHost(GpuBucket& bucket, Share& share) {
  const Reduction reduction = ReductionOf(bucket);
  const DataType dtype = reduction.dtype;
  const BucketPlaces places(bucket);
  auto staging = pinned_pool_->Take(places.count * SizeOf(dtype));
  if (!staging.ok()) co_return staging.status();
  std::byte* const block = staging.value().data();
  Stream& stream = *share.down;
  HORON_CO_TRY(Begin(bucket, stream));
  HORON_CO_TRY(OwnOutputs(bucket));
  HORON_CO_TRY(stream.Move(dtype, dtype, bucket.prescale(), places.In(bucket, block)));
  auto packed = stream.Record();
  if (!packed.ok()) co_return packed.status();
  EventDone arrived(*packed.value(), awaited_, PatienceFor(share));
  co_await Until(arrived);
  HORON_CO_TRY(arrived.status());
  std::vector<int> everyone;
  for (int member = 0; member < bucket.comm().size(); ++member) everyone.push_back(member);
  Communicator plain = bucket.comm().Sub(everyone, kPlainLevel);
  Task reduce = Allreduce(plain, block, places.count, reduction);
  HORON_CO_TRY(co_await reduce);
  HORON_CO_TRY(packed.value()->HoldBack(share.up->native()));
  HORON_CO_TRY(share.up->Move(dtype, dtype, 1.0, places.Out(bucket, block)));
  HORON_CO_TRY(Retire(*share.up, std::move(staging).value()));
  co_return Finish(bucket, *share.up);
}

}  // namespace horon
