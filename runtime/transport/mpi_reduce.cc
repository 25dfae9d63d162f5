// Reductions that MPI runs itself: MPI_Iallreduce, among all ranks or a set of them.
//
// The order of additions, and so the last bits, are MPI's. So is what becomes of a NaN in MPI_MIN
// and MPI_MAX: the standard leaves it open, and it may be lost, where Horon's kernels keep it. So
// they are used only with HORON_DETERMINISTIC=0.

#include <algorithm>
#include <cstdio>

#include "runtime/transport/mpi_calls.h"
#include "runtime/transport/mpi_transport.h"

namespace horon {
namespace {

// MPI_DATATYPE_NULL for what MPI does not add: fp16, bf16, and bool, whose sum is "or" here.
MPI_Datatype TypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kUInt8:
      return MPI_UINT8_T;
    case DataType::kInt8:
      return MPI_INT8_T;
    case DataType::kInt16:
      return MPI_INT16_T;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt64:
      return MPI_INT64_T;
    case DataType::kFloat32:
      return MPI_FLOAT;
    case DataType::kFloat64:
      return MPI_DOUBLE;
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kBool:
      break;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op OpOf(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return MPI_SUM;
    case ReduceKind::kMin:
      return MPI_MIN;
    case ReduceKind::kMax:
      return MPI_MAX;
    case ReduceKind::kProduct:
      return MPI_PROD;
  }
  return MPI_OP_NULL;
}

// The communicator of some ranks, waited for until it is made.
class PendingComm final : public Waitable {
 public:
  PendingComm(MpiComm& world, const std::vector<int>& ranks) : world_(world), ranks_(ranks) {}
  bool Ready() override {
    found_ = world_.Of(ranks_);
    return !found_.ok() || found_.value() != MPI_COMM_NULL;
  }
  const Result<MPI_Comm>& found() const { return found_; }

 private:
  MpiComm& world_;
  const std::vector<int>& ranks_;
  Result<MPI_Comm> found_ = MPI_Comm{MPI_COMM_NULL};
};

}  // namespace

bool MpiTransport::ReducesBlocks(const BlockReduction& reduction) const {
  return reduces_blocks_ && TypeOf(reduction.dtype) != MPI_DATATYPE_NULL &&
         !reduction.ranks.empty() && Reaches(reduction.ranks.front()) &&
         Reaches(reduction.ranks.back());
}

Status MpiTransport::Prepare(const std::vector<int>& ranks) {
  HORON_TRY(failure_);
  if (reduces_blocks_) world_->Make(ranks);
  return Status::Ok();
}

Task MpiTransport::ReduceBlock(BlockReduction reduction) {
  if (!failure_.ok()) co_return failure_;
  if (!ReducesBlocks(reduction)) co_return Status::Unsupported("MPI does not reduce this type");
  world_->Make(reduction.ranks);
  PendingComm comm(*world_, reduction.ranks);
  if (!comm.Ready()) co_await Until(comm);
  HORON_CO_TRY(comm.found().status());
  PendingReduction pending(*this);
  HORON_CO_TRY(pending.Start(comm.found().value(), reduction));
  co_await Until(pending);
  co_return pending.status();
}

bool MpiTransport::PollReductions() {
  bool moved = world_->Look();
  for (PendingReduction* reduction : reductions_) moved = reduction->Poll() || moved;
  return moved;
}

// All pieces start at once: collectives on one communicator match by their order, which must not
// depend on when a coroutine is resumed.
Status PendingReduction::Start(MPI_Comm comm, const BlockReduction& reduction) {
  done_ = false;
  transport_.reductions_.push_back(this);
  const int64_t size = SizeOf(reduction.dtype);
  for (int64_t begin = 0; begin < reduction.count; begin += transport_.piece_) {
    const auto n = static_cast<int>(std::min(transport_.piece_, reduction.count - begin));
    requests_.push_back(MPI_REQUEST_NULL);
    const bool in_place = reduction.input == reduction.output;
    const void* const input = in_place ? MPI_IN_PLACE : reduction.input + begin * size;
    const int code =
        MPI_Iallreduce(input, reduction.output + begin * size, n, TypeOf(reduction.dtype),
                       OpOf(reduction.kind), comm, &requests_.back());
    HORON_TRY(Check(code, "an MPI reduction"));
    transport_.collectives_.Add();
  }
  return Status::Ok();
}

bool PendingReduction::Poll() {
  if (done_) return false;
  int through = 0;
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &through,
                               MPI_STATUSES_IGNORE);
  status_ = Check(code, "an MPI reduction");
  if (!status_.ok()) {
    transport_.world_->Spoil();
    transport_.given_back_ = true;  // by whoever waits for it
  }
  done_ = through != 0 || code != MPI_SUCCESS;
  return done_;
}

void PendingReduction::Fail(const Status& status) {
  if (done_) return;
  status_ = status;
  done_ = true;
}

PendingReduction::~PendingReduction() {
  std::erase(transport_.reductions_, this);
  const bool pending = std::any_of(requests_.begin(), requests_.end(),
                                   [](MPI_Request request) { return request != MPI_REQUEST_NULL; });
  if (!pending) return;
  if (transport_.failure_.ok()) {  // else MPI keeps what it has
    // Collectives cannot be cancelled, so what is not through by now is given the time that is
    // left.
    int code = MPI_SUCCESS;
    if (transport_.Settle(static_cast<int>(requests_.size()), requests_.data(),
                          MPI_STATUSES_IGNORE, code))
      return;
    std::fprintf(stderr, "horon: mpi: a reduction could not be taken back; MPI keeps its memory\n");
  }
  transport_.given_back_ = true;
}

}  // namespace horon
