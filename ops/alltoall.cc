// "alltoall": Request::splits[p] rows go to rank p, by ascending p from the first row on; no splits
// mean equal parts. Rows behind the last split stay at home. The output, by ascending sender, and
// the rows received from each rank belong to the Work. Any dtype.
//
// Sent per rank: its rows for others, in one message each; large ones between ranks that share a
// lane through its slots: one copy into shared memory and one out of it, chunk by chunk.
#include <algorithm>
#include <utility>

#include "ops/rows.h"
#include "runtime/device/kernels.h"
#include "runtime/op/gpu_stage.h"
#include "runtime/transport/lane.h"

namespace horon {
namespace {

Status Wrong(const Request& request, int rank, const std::string& what) {
  return Status::InvalidArgument("alltoall of tensor '" + request.name + "' on rank [" +
                                 std::to_string(rank) + "]: " + what + ".");
}

// The rows that one rank sends to each of `size` ranks.
Result<std::vector<int64_t>> SplitsOf(const Request& request, int rank, size_t size) {
  const int64_t rows = request.shape[0];
  const auto parts = static_cast<int64_t>(size);
  if (request.splits.empty()) {
    if (rows % parts == 0) return std::vector<int64_t>(size, rows / parts);
    return Wrong(request, rank,
                 "splits not provided, but the first dimension, " + std::to_string(rows) +
                     ", is not an even multiple of the number of ranks, " + std::to_string(parts));
  }
  if (request.splits.size() != size) {
    return Wrong(request, rank,
                 "number of entries in splits, " + std::to_string(request.splits.size()) +
                     ", does not equal the number of ranks, " + std::to_string(size));
  }
  int64_t left = rows;
  for (const int64_t split : request.splits) {
    if (split < 0)
      return Wrong(request, rank, "splits " + ToString(request.splits) + " hold a negative number");
    if (split > left) {
      return Wrong(request, rank,
                   "the sum of splits " + ToString(request.splits) +
                       " is greater than the first dimension, " + std::to_string(rows));
    }
    left -= split;
  }
  return request.splits;
}

constexpr uint64_t kSwapped = 0x7377617073;  // tells a bucket of this from others of its tensors

// By a rank on average, from others.
int64_t MeanReceived(Stage& stage) {
  const std::vector<int64_t>& matrix = stage.segments()[0].agreed->sizes;
  const auto size = static_cast<size_t>(stage.comm().size());
  int64_t rows = 0;
  for (size_t i = 0; i < matrix.size(); ++i) {
    if (i / size != i % size) rows += matrix[i];
  }
  return rows * RowBytes(*stage.segments()[0].request) / stage.comm().size();
}

class AlltoallOp final : public Op {
 public:
  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckCommon(by_rank, ranks, "ALLTOALL"));
    HORON_TRY(CheckRows(by_rank, ranks, "ALLTOALL"));
    HORON_TRY(CheckUnscaled(*by_rank[0]));
    Agreement agreed;  // sizes[from * n + to]
    for (size_t i = 0; i < by_rank.size(); ++i) {
      HORON_ASSIGN(const auto row, SplitsOf(*by_rank[i], ranks[i], by_rank.size()));
      agreed.sizes.insert(agreed.sizes.end(), row.begin(), row.end());
    }
    return agreed;
  }

  bool lockable(const Request&) const override { return true; }
  int64_t FusionBytes(int64_t, const Request& request, const Agreement& agreed) const override {
    return GatheredBytes(request, agreed);  // of the whole matrix
  }
  // What others send to a rank that has joined is lost.
  WhenJoined when_joined() const override { return WhenJoined::kNoRows; }

  bool TakesLane(Stage& stage) const override;
  Task Run(Stage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i) HORON_CO_TRY(co_await RunOne(stage, i));
    co_return Status::Ok();
  }
  bool on_gpus(Stage&, bool) const override { return true; }
  Task RunOverNodes(GpuStage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i)
      HORON_CO_TRY(co_await RunOneOverNodes(stage, i));
    co_return Status::Ok();
  }
  Status Enqueue(GpuStage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i) {
      HORON_ASSIGN(const Rows rows, PlaceRows(stage, i));
      HORON_TRY(stage.group().Exchange(rows.send, rows.recv, stage.stream()));
    }
    return Status::Ok();
  }

 private:
  struct Rows {  // by rank
    std::vector<Span> send, recv;
  };
  static Result<Rows> PlaceRows(Stage& stage, size_t i);
  Task RunOne(Stage& stage, size_t i) const;
  static Task RunOneOverNodes(GpuStage& stage, size_t i);
  static Task RunOverLane(Stage& stage, const Rows& rows);
};

// Makes the output.
Result<AlltoallOp::Rows> AlltoallOp::PlaceRows(Stage& stage, size_t i) {
  const Communicator& comm = stage.comm();
  const Segment& segment = stage.segments()[i];
  const auto size = static_cast<size_t>(comm.size()), me = static_cast<size_t>(comm.rank());
  const std::vector<int64_t>& matrix = segment.agreed->sizes;
  std::vector<int64_t> received;
  int64_t rows = 0;
  for (size_t from = 0; from < size; ++from) {
    received.push_back(matrix[from * size + me]);
    rows += received.back();
  }
  HORON_TRY(stage.AllocateOutput(i, WithRows(segment.request->shape, rows)));
  stage.SetReceivedSplits(i, received);

  const int64_t row_bytes = RowBytes(*segment.request);
  auto* from_here = const_cast<std::byte*>(segment.input);  // sends only read
  std::byte* to_here = stage.segments()[i].output;
  Rows placed;
  for (size_t peer = 0; peer < size; ++peer) {
    placed.send.push_back({from_here, matrix[me * size + peer] * row_bytes});
    placed.recv.push_back({to_here, received[peer] * row_bytes});
    from_here += placed.send.back().bytes;
    to_here += placed.recv.back().bytes;
  }
  return placed;
}

Task AlltoallOp::RunOne(Stage& stage, size_t i) const {
  const Result<Rows> rows = PlaceRows(stage, i);
  if (!rows.ok()) co_return rows.status();
  Task swap = TakesLane(stage)
                  ? RunOverLane(stage, rows.value())
                  : Alltoall(stage.comm(), rows.value().send, rows.value().recv);
  co_return co_await swap;
}

Task AlltoallOp::RunOneOverNodes(GpuStage& stage, size_t i) {
  Result<Rows> rows = PlaceRows(stage, i);
  if (!rows.ok()) co_return rows.status();
  const auto me = static_cast<size_t>(stage.comm().rank());
  const Span from = std::exchange(rows.value().send[me], {});
  const Span to = std::exchange(rows.value().recv[me], {});
  if (to.bytes > 0) HORON_CO_TRY(stage.stream().Copy(to.data, from.data, to.bytes));
  Task exchange = stage.Exchange(std::move(rows.value().send), std::move(rows.value().recv));
  co_return co_await exchange;
}

// Two ranks go through it in step; more than that meet too often for it to pay, until what they
// receive is so large that it goes past the caches.
bool AlltoallOp::TakesLane(Stage& stage) const {
  const Lane* const lane = stage.comm().lane();
  const int64_t least = stage.comm().size() == 2 ? kLaneBytes : kPastCachesBytes;
  return lane != nullptr && lane->CanSwap(kByte) && MeanReceived(stage) >= least;
}

// In step s each rank gives to the one s places on, and takes from the one s places before.
Task AlltoallOp::RunOverLane(Stage& stage, const Rows& rows) {
  stage.SetAlgorithm("through shared memory");
  const int size = stage.comm().size(), me = stage.comm().rank();
  const auto sender = [=](int step) { return static_cast<size_t>((me - step + size) % size); };
  const Segment& segment = stage.segments()[0];
  const std::vector<int64_t>& matrix = segment.agreed->sizes;
  const int64_t row_bytes = RowBytes(*segment.request);
  LaneRow row{me, BucketWord(stage.segments(), kSwapped), {}};
  int64_t received = 0;
  for (int step = 1; step < size; ++step) {
    int64_t most = 0;  // rows
    for (int from = 0; from < size; ++from)
      most = std::max(most, matrix[static_cast<size_t>(from * size + (from + step) % size)]);
    const Span& gives = rows.send[static_cast<size_t>((me + step) % size)];
    const Span& keeps = rows.recv[sender(step)];
    row.parts.push_back({gives.data, nullptr, gives.bytes, keeps.bytes, most * row_bytes});
    received += keeps.bytes;
  }
  const auto own = static_cast<size_t>(me);
  CopyInto(rows.send[own].data, rows.recv[own].data, rows.send[own].bytes);
  Lane& lane = *stage.comm().lane();
  LaneSwap swap = lane.MakeSwap(kByte, row, LaneSwap::Passes::kOne);
  const auto copy = received >= kPastCachesBytes ? CopyPastCaches : CopyInto;
  LaneSwap::Meet take = [&](size_t i, int64_t at, std::byte* shown, int64_t count) {
    const size_t from = sender(static_cast<int>(i) + 1);
    copy(swap.Of(static_cast<int>(from), shown), rows.recv[from].data + at, count);
  };
  co_return co_await lane.Swap(swap, LaneSwap::Pass::kLast, std::move(take));
}

const OpRegistrar kAlltoall{"alltoall", MakeOp<AlltoallOp>, OpUse::kCall};

}  // namespace
}  // namespace horon
