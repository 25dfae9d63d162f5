#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "runtime/base/seconds.h"
#include "runtime/transport/nccl.h"

namespace horon {
namespace {

using NcclClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A communicator does not block; what a call leaves in progress is over soon: connections of the
// first collective, the peers' part of a farewell. The baton is held meanwhile.
constexpr milliseconds kMostSettling{30'000};

int TypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return kNcclInt8;
    case DataType::kUInt8:
    case DataType::kBool:
      return kNcclUint8;
    case DataType::kInt32:
      return kNcclInt32;
    case DataType::kInt64:
      return kNcclInt64;
    case DataType::kFloat16:
      return kNcclFloat16;
    case DataType::kFloat32:
      return kNcclFloat32;
    case DataType::kFloat64:
      return kNcclFloat64;
    case DataType::kBFloat16:
      return kNcclBfloat16;
    case DataType::kInt16:
      return -1;
  }
  return -1;
}
constexpr int kByte = kNcclUint8;

// bool holds 0 and 1: "or" is the larger one, "and" the smaller one.
int OpOf(DataType dtype, ReduceKind kind) {
  const bool logical = dtype == DataType::kBool;
  switch (kind) {
    case ReduceKind::kSum:
      return logical ? kNcclMax : kNcclSum;
    case ReduceKind::kProduct:
      return logical ? kNcclMin : kNcclProd;
    case ReduceKind::kMax:
      return kNcclMax;
    case ReduceKind::kMin:
      return kNcclMin;
  }
  return -1;
}

size_t Size(int64_t count) { return static_cast<size_t>(count); }

class NcclGroup final : public GpuGroup {
 public:
  NcclGroup(const NcclLibrary& nccl, EnterDevice enter, NcclComm* comm, int size, int device,
            const GpuGroupOptions& options)
      : nccl_(nccl),
        enter_(std::move(enter)),
        comm_(comm),
        size_(size),
        device_(device),
        options_(options) {}

  // Finalize waits for the other ranks, Abort does not: it is what is left when they have not come,
  // or when something is wrong.
  ~NcclGroup() override {
    if (comm_ == nullptr) return;
    const std::shared_ptr<void> current = enter_(device_);
    if (met_ && !failed_ && Settle(nccl_.CommFinalize(comm_), "leave").ok()) {
      nccl_.CommDestroy(comm_);
    } else {
      Abort();
    }
  }

  Result<bool> Ready() override {
    const std::shared_ptr<void> current = enter_(device_);
    HORON_ASSIGN(const NcclAnswer state, State("bring the ranks together"));
    met_ = state != kNcclInProgress;
    const milliseconds limit = options_.timeout;
    if (!met_ && limit.count() > 0 && NcclClock::now() - begun_ > limit) {
      return Failed(Status::Unavailable(
          "NCCL did not bring " + std::to_string(size_) + " ranks together within " +
          Seconds(limit) +
          " (HORON_NCCL_TIMEOUT): one is stuck, or they do not reach each other "
          "(NCCL_SOCKET_IFNAME chooses the interface, NCCL_DEBUG=INFO makes it say more)"));
    }
    return met_;
  }
  Status Check() override {
    const std::shared_ptr<void> current = enter_(device_);
    return State("go on").status();
  }
  void Abort() override {
    if (comm_ == nullptr) return;
    const std::shared_ptr<void> current = enter_(device_);
    nccl_.CommAbort(std::exchange(comm_, nullptr));
    handles_.clear();  // they went with it
  }
  bool Reduces(DataType dtype) const override { return TypeOf(dtype) >= 0; }

  Status Register(const Span& memory) override {
    if (!nccl_.registers()) return Status::Unsupported("this NCCL registers no memory");
    void* handle = nullptr;
    HORON_TRY(Run("register memory", [&] {
      return nccl_.CommRegister(comm_, memory.data, Size(memory.bytes), &handle);
    }));
    handles_[memory.data] = handle;
    return Status::Ok();
  }
  Status Deregister(const std::byte* memory) override {
    const auto found = handles_.find(memory);
    if (found == handles_.end()) return Status::Ok();
    void* const handle = found->second;
    handles_.erase(found);
    return Run("forget memory", [&] { return nccl_.CommDeregister(comm_, handle); });
  }

  Status Allreduce(DataType dtype, ReduceKind kind, std::byte* block, int64_t count,
                   Stream& stream) override {
    if (count == 0) return Status::Ok();
    return Run("start an allreduce", [&] {
      return nccl_.AllReduce(block, block, Size(count), TypeOf(dtype), OpOf(dtype, kind), comm_,
                             stream.native());
    });
  }
  Status ReduceScatter(DataType dtype, ReduceKind kind, const std::byte* block, std::byte* out,
                       int64_t count, Stream& stream) override {
    if (count == 0) return Status::Ok();
    return Run("start a reduce-scatter", [&] {
      return nccl_.ReduceScatter(block, out, Size(count), TypeOf(dtype), OpOf(dtype, kind), comm_,
                                 stream.native());
    });
  }
  Status Allgather(const std::byte* part, std::byte* block, int64_t bytes,
                   Stream& stream) override {
    if (bytes == 0) return Status::Ok();
    return Run("start an allgather", [&] {
      return nccl_.AllGather(part, block, Size(bytes), kByte, comm_, stream.native());
    });
  }
  Status Broadcast(std::span<const Span> spans, int root, Stream& stream) override {
    return Together("a broadcast", [&](Status& started) {
      for (const Span& span : spans) {
        Add(started, span, "start a broadcast", [&](size_t bytes) {
          return nccl_.Broadcast(span.data, span.data, bytes, kByte, root, comm_, stream.native());
        });
      }
    });
  }
  Status Exchange(std::span<const Span> send, std::span<const Span> recv, Stream& stream) override {
    return Together("an exchange", [&](Status& started) {
      for (size_t i = 0; i < send.size(); ++i) {
        const auto peer = static_cast<int>(i % Size(size_));
        Add(started, send[i], "start a send", [&](size_t bytes) {
          return nccl_.Send(send[i].data, bytes, kByte, peer, comm_, stream.native());
        });
        Add(started, recv[i], "start a receive", [&](size_t bytes) {
          return nccl_.Recv(recv[i].data, bytes, kByte, peer, comm_, stream.native());
        });
      }
    });
  }

 private:
  // What has failed once is not finalized.
  Status Failed(Status status) {
    failed_ = failed_ || !status.ok();
    return status;
  }
  Status Checked(NcclAnswer answer, const std::string& what) {
    return Failed(nccl_.Check(answer, what));
  }
  Result<NcclAnswer> State(const std::string& what) {
    if (comm_ == nullptr) return Status::Unavailable("the NCCL communicator was aborted");
    NcclAnswer state = kNcclSuccess;
    HORON_TRY(Checked(nccl_.CommGetAsyncError(comm_, &state), what));
    HORON_TRY(Checked(state, what));
    return state;
  }
  template <typename Call>
  Status Run(const std::string& what, const Call& call) {
    if (comm_ == nullptr) return Status::Unavailable("the NCCL communicator was aborted");
    const std::shared_ptr<void> current = enter_(device_);
    return Settle(call(), what);
  }
  // One launch. What was begun is ended, whatever is added: else NCCL would take the next call for
  // a part of it.
  template <typename AddAll>
  Status Together(const std::string& what, const AddAll& add_all) {
    if (comm_ == nullptr) return Status::Unavailable("the NCCL communicator was aborted");
    const std::shared_ptr<void> current = enter_(device_);
    HORON_TRY(Checked(nccl_.GroupStart(), "begin " + what));
    Status started;
    add_all(started);
    const Status ended = Settle(nccl_.GroupEnd(), "start " + what);
    return started.ok() ? ended : started;
  }
  template <typename Call>
  void Add(Status& started, const Span& span, const std::string& what, const Call& call) {
    if (span.bytes > 0 && started.ok()) started = Checked(call(Size(span.bytes)), what);
  }
  Status Settle(NcclAnswer answer, const std::string& what) {
    HORON_TRY(Checked(answer, what));
    if (answer != kNcclInProgress) return Status::Ok();
    const milliseconds limit =
        options_.timeout.count() > 0 ? std::min(options_.timeout, kMostSettling) : kMostSettling;
    const auto until = NcclClock::now() + limit;
    while (NcclClock::now() < until) {
      HORON_ASSIGN(const NcclAnswer state, State(what));
      if (state != kNcclInProgress) return Status::Ok();
      sched_yield();
    }
    return Failed(Status::Unavailable("NCCL did not " + what + " within " + Seconds(limit) +
                                      ": a rank is stuck"));
  }

  const NcclLibrary& nccl_;
  EnterDevice enter_;
  NcclComm* comm_;  // null once aborted
  int size_, device_;
  const GpuGroupOptions options_;
  const NcclClock::time_point begun_ = NcclClock::now();
  bool met_ = false, failed_ = false;
  std::map<const std::byte*, void*> handles_;  // of registered memory
};

class NcclMemory final : public Memory {
 public:
  NcclMemory(const NcclLibrary& nccl, EnterDevice enter, Device device)
      : nccl_(nccl), enter_(std::move(enter)), device_(device) {}
  Device device() const override { return device_; }
  Result<std::byte*> Allocate(int64_t bytes) override {
    const std::shared_ptr<void> current = enter_(device_.index);
    void* data = nullptr;
    HORON_TRY(nccl_.Check(nccl_.MemAlloc(&data, Size(bytes)),
                          "allocate " + std::to_string(bytes) + " bytes on " + ToString(device_)));
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t) override {
    const std::shared_ptr<void> current = enter_(device_.index);
    nccl_.MemFree(data);
  }

 private:
  const NcclLibrary& nccl_;
  EnterDevice enter_;
  Device device_;
};

class NcclNetwork final : public GpuNetwork {
 public:
  NcclNetwork(const NcclLibrary& nccl, EnterDevice enter) : nccl_(nccl), enter_(std::move(enter)) {}
  int version() const override { return nccl_.found.version; }
  Result<GpuGroupId> MakeId() override {
    NcclUniqueId id{};
    HORON_TRY(nccl_.Check(nccl_.GetUniqueId(&id), "make an id"));
    GpuGroupId made;
    static_assert(sizeof made == sizeof id);
    std::memcpy(made.bytes.data(), &id, sizeof id);
    return made;
  }
  Result<std::unique_ptr<GpuGroup>> Connect(const GpuGroupId& id, int size, int rank, Device device,
                                            const GpuGroupOptions& options) override {
    NcclUniqueId told{};
    std::memcpy(&told, id.bytes.data(), sizeof told);
    NcclConfig config;
    if (options.max_ctas > 0) config.max_ctas = options.max_ctas;
    const std::shared_ptr<void> current = enter_(device.index);
    NcclComm* comm = nullptr;
    const NcclAnswer answer = nccl_.CommInitRankConfig(&comm, size, told, rank, &config);
    const Status begun = nccl_.Check(answer, "begin a communicator on " + ToString(device));
    if (!begun.ok() && comm != nullptr) nccl_.CommAbort(comm);
    HORON_TRY(begun);
    return std::unique_ptr<GpuGroup>(
        std::make_unique<NcclGroup>(nccl_, enter_, comm, size, device.index, options));
  }
  std::unique_ptr<Memory> MakeMemory(Device device) override {
    if (!nccl_.registers()) return nullptr;
    return std::make_unique<NcclMemory>(nccl_, enter_, device);
  }

 private:
  const NcclLibrary& nccl_;
  const EnterDevice enter_;
};

}  // namespace

std::unique_ptr<GpuNetwork> MakeNcclNetwork(const NcclLibrary& library, EnterDevice enter) {
  return std::make_unique<NcclNetwork>(library, std::move(enter));
}

}  // namespace horon
