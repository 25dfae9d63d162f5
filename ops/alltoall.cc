// "alltoall": Request::splits[p] rows go to rank p, by ascending p from the first row on; no splits
// mean equal parts. Rows behind the last split stay at home. The output, by ascending sender, and
// the rows received from each rank belong to the Work. Any dtype.
#include "ops/rows.h"
#include "runtime/op/gpu_stage.h"

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

  // What others send to a rank that has joined is lost.
  WhenJoined when_joined() const override { return WhenJoined::kNoRows; }

  Task Run(Stage& stage) override {
    for (size_t i = 0; i < stage.segments().size(); ++i) HORON_CO_TRY(co_await RunOne(stage, i));
    co_return Status::Ok();
  }
  bool on_gpus(Stage&, bool everyone) const override { return everyone; }
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
  static Task RunOne(Stage& stage, size_t i);
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

  const int64_t row_bytes = RowCount(segment.request->shape) * SizeOf(stage.dtype());
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

Task AlltoallOp::RunOne(Stage& stage, size_t i) {
  const Result<Rows> rows = PlaceRows(stage, i);
  if (!rows.ok()) co_return rows.status();
  co_return co_await Alltoall(stage.comm(), rows.value().send, rows.value().recv);
}

const OpRegistrar kAlltoall{"alltoall", MakeOp<AlltoallOp>};

}  // namespace
}  // namespace horon
