#include <sched.h>

#include <chrono>
#include <cstring>

#include "runtime/device/gpu_cuda.h"
#include "runtime/transport/nccl.h"

namespace horon {
namespace {

// A communicator does not block; what a call leaves in progress is over soon: connections of the
// first collective, the peers' part of a farewell.
constexpr std::chrono::seconds kPatience{30};

int TypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return 0;
    case DataType::kUInt8:
    case DataType::kBool:
      return 1;
    case DataType::kInt32:
      return 2;
    case DataType::kInt64:
      return 4;
    case DataType::kFloat16:
      return 6;
    case DataType::kFloat32:
      return 7;
    case DataType::kFloat64:
      return 8;
    case DataType::kBFloat16:
      return 9;
    case DataType::kInt16:
      return -1;
  }
  return -1;
}
constexpr int kByte = 1;

// bool holds 0 and 1: "or" is the larger one, "and" the smaller one.
int OpOf(DataType dtype, ReduceKind kind) {
  constexpr int kSum = 0, kProduct = 1, kMax = 2, kMin = 3;
  const bool logical = dtype == DataType::kBool;
  switch (kind) {
    case ReduceKind::kSum:
      return logical ? kMax : kSum;
    case ReduceKind::kProduct:
      return logical ? kMin : kProduct;
    case ReduceKind::kMax:
      return kMax;
    case ReduceKind::kMin:
      return kMin;
  }
  return -1;
}

size_t Size(int64_t count) { return static_cast<size_t>(count); }

class NcclGroup final : public GpuGroup {
 public:
  NcclGroup(const NcclLibrary& nccl, NcclComm* comm, int size, int device)
      : nccl_(nccl), comm_(comm), size_(size), device_(device) {}

  // Finalize waits for the other ranks, Abort does not: it is what is left when they do not come.
  ~NcclGroup() override {
    if (comm_ == nullptr) return;
    const cuda::OnDevice current(device_);
    if (Settle(nccl_.CommFinalize(comm_), "leave").ok()) {
      nccl_.CommDestroy(comm_);
    } else {
      nccl_.CommAbort(comm_);
    }
  }

  Result<bool> Ready() override {
    HORON_ASSIGN(const NcclAnswer state, State("bring the ranks together"));
    return state != kNcclInProgress;
  }
  Status Check() override { return State("go on").status(); }
  void Abort() override {
    const cuda::OnDevice current(device_);
    if (comm_ != nullptr) nccl_.CommAbort(comm_);
    comm_ = nullptr;
  }
  bool Reduces(DataType dtype) const override { return TypeOf(dtype) >= 0; }

  Status Allreduce(DataType dtype, ReduceKind kind, std::byte* block, int64_t count,
                   Stream& stream) override {
    if (count == 0) return Status::Ok();
    const cuda::OnDevice current(device_);
    return Settle(nccl_.AllReduce(block, block, Size(count), TypeOf(dtype), OpOf(dtype, kind),
                                  comm_, stream.native()),
                  "start an allreduce");
  }
  Status ReduceScatter(DataType dtype, ReduceKind kind, const std::byte* block, std::byte* out,
                       int64_t count, Stream& stream) override {
    if (count == 0) return Status::Ok();
    const cuda::OnDevice current(device_);
    return Settle(nccl_.ReduceScatter(block, out, Size(count), TypeOf(dtype), OpOf(dtype, kind),
                                      comm_, stream.native()),
                  "start a reduce-scatter");
  }
  Status Allgather(const std::byte* part, std::byte* block, int64_t bytes,
                   Stream& stream) override {
    if (bytes == 0) return Status::Ok();
    const cuda::OnDevice current(device_);
    return Settle(nccl_.AllGather(part, block, Size(bytes), kByte, comm_, stream.native()),
                  "start an allgather");
  }
  Status Broadcast(std::span<const Span> spans, int root, Stream& stream) override {
    const cuda::OnDevice current(device_);
    HORON_TRY(nccl_.Check(nccl_.GroupStart(), "begin a broadcast"));
    Status started;
    for (const Span& span : spans) {
      if (span.bytes == 0 || !started.ok()) continue;
      started = nccl_.Check(nccl_.Broadcast(span.data, span.data, Size(span.bytes), kByte, root,
                                            comm_, stream.native()),
                            "start a broadcast");
    }
    const Status ended = Settle(nccl_.GroupEnd(), "start a broadcast");
    return started.ok() ? ended : started;
  }
  Status Exchange(std::span<const Span> send, std::span<const Span> recv, Stream& stream) override {
    const cuda::OnDevice current(device_);
    HORON_TRY(nccl_.Check(nccl_.GroupStart(), "begin an exchange"));
    Status started;
    for (size_t i = 0; i < send.size() && started.ok(); ++i) {
      const auto peer = static_cast<int>(i % Size(size_));
      if (send[i].bytes > 0)
        started = nccl_.Check(
            nccl_.Send(send[i].data, Size(send[i].bytes), kByte, peer, comm_, stream.native()),
            "start a send");
      if (recv[i].bytes > 0 && started.ok())
        started = nccl_.Check(
            nccl_.Recv(recv[i].data, Size(recv[i].bytes), kByte, peer, comm_, stream.native()),
            "start a receive");
    }
    const Status ended = Settle(nccl_.GroupEnd(), "start an exchange");
    return started.ok() ? ended : started;
  }

 private:
  Result<NcclAnswer> State(const std::string& what) {
    if (comm_ == nullptr) return Status::Unavailable("the NCCL communicator was aborted");
    NcclAnswer state = kNcclSuccess;
    HORON_TRY(nccl_.Check(nccl_.CommGetAsyncError(comm_, &state), what));
    HORON_TRY(nccl_.Check(state, what));
    return state;
  }
  Status Settle(NcclAnswer answer, const std::string& what) {
    HORON_TRY(nccl_.Check(answer, what));
    return answer == kNcclInProgress ? Settle(what) : Status::Ok();
  }
  Status Settle(const std::string& what) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < until) {
      HORON_ASSIGN(const NcclAnswer state, State(what));
      if (state != kNcclInProgress) return Status::Ok();
      sched_yield();
    }
    return Status::Unavailable("NCCL did not " + what + " within 30 seconds: a rank is stuck");
  }

  const NcclLibrary& nccl_;
  NcclComm* comm_;  // null once aborted
  int size_, device_;
};

class NcclNetwork final : public GpuNetwork {
 public:
  explicit NcclNetwork(const NcclLibrary& nccl) : nccl_(nccl) {}
  int version() const override { return nccl_.found.version; }
  Result<GpuGroupId> MakeId() override {
    NcclUniqueId id{};
    HORON_TRY(nccl_.Check(nccl_.GetUniqueId(&id), "make an id"));
    GpuGroupId made;
    static_assert(sizeof made == sizeof id);
    std::memcpy(made.bytes.data(), &id, sizeof id);
    return made;
  }
  Result<std::unique_ptr<GpuGroup>> Connect(const GpuGroupId& id, int size, int rank,
                                            Device device) override;

 private:
  const NcclLibrary& nccl_;
};

}  // namespace

std::unique_ptr<GpuNetwork> MakeNcclNetwork(const NcclLibrary& library) {
  return std::make_unique<NcclNetwork>(library);
}

Result<std::unique_ptr<GpuGroup>> NcclNetwork::Connect(const GpuGroupId& id, int size, int rank,
                                                       Device device) {
  NcclUniqueId told{};
  std::memcpy(&told, id.bytes.data(), sizeof told);
  NcclConfig config;
  const cuda::OnDevice current(device.index);
  NcclComm* comm = nullptr;
  HORON_TRY(nccl_.Check(nccl_.CommInitRankConfig(&comm, size, told, rank, &config),
                        "begin a communicator on " + ToString(device)));
  return std::unique_ptr<GpuGroup>(std::make_unique<NcclGroup>(nccl_, comm, size, device.index));
}

}  // namespace horon
