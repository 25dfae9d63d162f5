#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/seconds.h"
#include "runtime/transport/nccl.h"

namespace horon {
namespace {

using NcclClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What waits for other ranks is over soon: connections of the first collective, the peers' part of
// a farewell. The baton is held meanwhile.
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

using Answer = Result<NcclAnswer>;

// A call that waits for other ranks, on a thread of its own. One that does not return is left
// behind with that thread and what it captured.
class Apart {
 public:
  // `unwanted`: what that thread does when the call returns and was left behind.
  template <typename Call, typename Unwanted>
  Apart(Call call, Unwanted unwanted) {
    try {
      thread_ = std::thread([state = state_, call = std::move(call),
                             unwanted = std::move(unwanted)]() mutable {
        state->answer = call();
        if (state->stage.exchange(kReturned, std::memory_order_acq_rel) == kLeft) unwanted();
      });
    } catch (const std::system_error& error) {
      state_->answer =
          Status::Unavailable(std::string("no thread to call NCCL on: ") + error.what());
      state_->stage = kReturned;
    }
  }
  ~Apart() {
    if (!thread_.joinable()) return;
    if (Leave()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
  bool started() const { return thread_.joinable(); }
  bool returned() const { return state_->stage.load(std::memory_order_acquire) == kReturned; }
  const Answer& answer() const { return state_->answer; }  // once returned
  // False: it has returned. Afterwards it is that thread's alone.
  bool Leave() {
    int running = kRunning;
    return state_->stage.compare_exchange_strong(running, kLeft, std::memory_order_acq_rel) ||
           running == kLeft;
  }

 private:
  static constexpr int kRunning = 0, kReturned = 1, kLeft = 2;
  struct State {
    std::atomic<int> stage{kRunning};
    Answer answer = kNcclInProgress;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

template <typename Call>
auto InDevice(EnterDevice enter, int device, Call call) {
  return [enter = std::move(enter), device, call = std::move(call)]() mutable {
    const std::shared_ptr<void> current = enter(device);
    return call();
  };
}

// The communicator blocks, so that this thread launches collectives by itself (decision 13). What
// would wait for other ranks is called apart: the making, the farewell, and each kind of call the
// first time, when NCCL connects what it takes.
class NcclGroup final : public GpuGroup {
 public:
  NcclGroup(const NcclLibrary& nccl, EnterDevice enter, const NcclUniqueId& id, int size, int rank,
            int device, const GpuGroupOptions& options)
      : nccl_(nccl),
        enter_(std::move(enter)),
        size_(size),
        device_(device),
        options_(options),
        connected_(static_cast<size_t>(size)) {
    NcclConfig config;
    config.blocking = 1;
    if (options.max_ctas > 0) config.max_ctas = options.max_ctas;
    const auto make = [&nccl, made = made_, size, id, rank, device, config]() mutable {
      return Asked(nccl, "begin a communicator on GPU " + std::to_string(device),
                   nccl.CommInitRankConfig(made.get(), size, id, rank, &config));
    };
    const auto abort = [&nccl, made = made_] {
      if (*made != nullptr) nccl.CommAbort(*made);
    };
    making_.emplace(InDevice(enter_, device, make), InDevice(enter_, device, abort));
  }

  ~NcclGroup() override { Leave(); }
  // Finalize waits for the other ranks, Abort does not: it is what is left when they have not come,
  // or when something is wrong. To end a communicator is to free its memory, for which CUDA waits
  // until the GPU rests: a GPU on which another communicator's kernel may wait for a rank, until
  // that is aborted. So neither is called here.
  void Leave() override {
    if (comm_ == nullptr || !met_ || failed_ || stuck_) return Abort();
    End([&nccl = nccl_, comm = comm_, limit = limit()] { return Farewell(nccl, comm, limit); });
  }
  bool gone() const override {
    return !stuck_ && !making_ && comm_ == nullptr && (!ending_ || ending_->returned());
  }
  bool stuck() const override { return stuck_; }

  Result<bool> Ready() override {
    const std::shared_ptr<void> current = enter_(device_);
    NcclAnswer state = kNcclInProgress;
    if (making_ && making_->returned()) {
      const Status begun = Failed(making_->answer().status());
      if (!begun.ok()) {
        Abort();
        return begun;
      }
      comm_ = *made_;
      making_.reset();
    }
    if (!making_) {
      HORON_ASSIGN(state, State("bring the ranks together"));
    }
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
    if (making_) return Status::Ok();
    const std::shared_ptr<void> current = enter_(device_);
    return State("go on").status();
  }
  // Not while a call is in it: such a one is left behind.
  void Abort() override {
    if (making_ && !making_->Leave()) comm_ = *made_;
    making_.reset();
    if (stuck_) comm_ = nullptr;
    if (comm_ != nullptr)
      End([&nccl = nccl_, comm = comm_] { return Asked(nccl, "abort", nccl.CommAbort(comm)); });
  }
  bool Reduces(DataType dtype) const override { return TypeOf(dtype) >= 0; }

  Status Register(const Span& memory) override {
    if (!nccl_.registers()) return Status::Unsupported("this NCCL registers no memory");
    void* handle = nullptr;
    HORON_TRY(Call("register memory", false, [&] {
      return nccl_.CommRegister(comm_, memory.data, Size(memory.bytes), &handle);
    }));
    registered_[memory.data] = {memory.bytes, handle};
    used_.clear();  // it may choose other ways with it
    return Status::Ok();
  }
  Result<MemoryRegistration> RegisterTogether(const Span& memory) override {
    if (!nccl_.makes_windows()) return Status::Unsupported("this NCCL makes no windows");
    // NCCL_COMM_BLOCKING=0 has it write there later.
    const auto& window = windows_.emplace_back(std::make_shared<void*>(nullptr));
    HORON_TRY(Call("register memory with all ranks", true, [=, &nccl = nccl_, comm = comm_] {
      return nccl.CommWindowRegister(comm, memory.data, Size(memory.bytes), window.get(),
                                     kNcclWindowSymmetric);
    }));
    if (*window == nullptr) {  // all is well, but these GPUs do not reach each other's memory
      HORON_TRY(Register(memory));
      return MemoryRegistration::kEach;
    }
    registered_[memory.data] = {memory.bytes, nullptr};
    used_.clear();
    return MemoryRegistration::kTogether;
  }
  Status Deregister(const std::byte* memory) override {
    const auto found = registered_.find(memory);
    if (found == registered_.end()) return Status::Ok();
    void* const handle = found->second.handle;
    registered_.erase(found);
    return Call("forget memory", false, [&] { return nccl_.CommDeregister(comm_, handle); });
  }

  Status Allreduce(DataType dtype, ReduceKind kind, std::byte* block, int64_t count,
                   Stream& stream) override {
    if (count == 0) return Status::Ok();
    const Span whole{block, count * SizeOf(dtype)};
    return Call("start an allreduce", First(kAllreduce, whole, dtype, kind),
                [=, &nccl = nccl_, comm = comm_, on = stream.native()] {
                  return nccl.AllReduce(block, block, Size(count), TypeOf(dtype), OpOf(dtype, kind),
                                        comm, on);
                });
  }
  Status ReduceScatter(DataType dtype, ReduceKind kind, const std::byte* block, std::byte* out,
                       int64_t count, Stream& stream) override {
    if (count == 0) return Status::Ok();
    const Span whole{const_cast<std::byte*>(block), count * SizeOf(dtype)};
    return Call("start a reduce-scatter", First(kReduceScatter, whole, dtype, kind),
                [=, &nccl = nccl_, comm = comm_, on = stream.native()] {
                  return nccl.ReduceScatter(block, out, Size(count), TypeOf(dtype),
                                            OpOf(dtype, kind), comm, on);
                });
  }
  Status Allgather(const std::byte* part, std::byte* block, int64_t bytes,
                   Stream& stream) override {
    if (bytes == 0) return Status::Ok();
    return Call("start an allgather", First(kAllgather, {block, bytes}),
                [=, &nccl = nccl_, comm = comm_, on = stream.native()] {
                  return nccl.AllGather(part, block, Size(bytes), kByte, comm, on);
                });
  }
  Status Broadcast(std::span<const Span> spans, int root, Stream& stream) override {
    bool first = false;
    Parts parts;
    for (const Span& span : spans) {
      if (span.bytes == 0) continue;
      first = First(kBroadcast, span) || first;
      parts.push_back({Part::kFromRoot, root, span});
    }
    return Together("a broadcast", first, std::move(parts), stream);
  }
  Status Exchange(std::span<const Span> send, std::span<const Span> recv, Stream& stream) override {
    bool first = false;
    Parts parts;
    for (size_t i = 0; i < send.size(); ++i) {
      Connected& to = connected_[i % connected_.size()];
      const auto peer = static_cast<int>(i % connected_.size());
      if (send[i].bytes > 0) {
        first = !std::exchange(to.sends[IsRegistered(send[i]) ? 1 : 0], true) || first;
        parts.push_back({Part::kSend, peer, send[i]});
      }
      if (recv[i].bytes > 0) {
        first = !std::exchange(to.receives[IsRegistered(recv[i]) ? 1 : 0], true) || first;
        parts.push_back({Part::kReceive, peer, recv[i]});
      }
    }
    return Together("an exchange", first, std::move(parts), stream);
  }

 private:
  enum Function { kAllreduce, kReduceScatter, kAllgather, kBroadcast };
  struct Part {
    enum Kind { kSend, kReceive, kFromRoot } kind;
    int rank;
    Span span;
  };
  using Parts = std::vector<Part>;
  struct Connected {  // of memory that is not registered, and that is
    bool sends[2] = {}, receives[2] = {};
  };
  struct Registered {
    int64_t bytes;
    void* handle;
  };

  template <typename Call>
  void End(Call call) {
    ending_.emplace(InDevice(enter_, device_, std::move(call)), [] {});
    stuck_ = !ending_->started();
    comm_ = nullptr;
    registered_.clear();  // they go with it
  }
  // On a thread of its own.
  static Answer Farewell(const NcclLibrary& nccl, NcclComm* comm, milliseconds limit) {
    const auto until = NcclClock::now() + limit;
    Answer left = Asked(nccl, "leave", nccl.CommFinalize(comm));
    while (left.ok() && left.value() == kNcclInProgress) {  // NCCL_COMM_BLOCKING=0
      if (NcclClock::now() >= until) {
        left = Status::Unavailable("NCCL did not leave in time");
        break;
      }
      std::this_thread::sleep_for(milliseconds(1));  // it wakes nobody
      NcclAnswer state = kNcclInProgress;
      const NcclAnswer asked = nccl.CommGetAsyncError(comm, &state);
      left = Asked(nccl, "leave", asked == kNcclSuccess ? state : asked);
    }
    return Asked(nccl, "leave", left.ok() ? nccl.CommDestroy(comm) : nccl.CommAbort(comm));
  }
  static Answer Asked(const NcclLibrary& nccl, const std::string& what, NcclAnswer answer) {
    HORON_TRY(nccl.Check(answer, what));
    return answer;
  }
  bool IsRegistered(const Span& memory) const {
    const auto after = registered_.upper_bound(memory.data);
    if (after == registered_.begin()) return false;
    const auto& [begin, known] = *std::prev(after);
    return memory.data + memory.bytes <= begin + known.bytes;
  }
  // Whether NCCL may have to connect something: it chooses a way for each of these. Some of
  // registered memory connect nothing for the others.
  bool First(Function function, const Span& memory, DataType dtype = DataType::kUInt8,
             ReduceKind kind = ReduceKind::kSum) {
    const auto size = static_cast<int>(std::bit_width(static_cast<uint64_t>(memory.bytes)));
    return used_.insert({function, size, dtype, kind, IsRegistered(memory)}).second;
  }
  // What has failed once is not finalized.
  Status Failed(Status status) {
    failed_ = failed_ || !status.ok();
    return status;
  }
  Status Usable() const {
    if (comm_ == nullptr) return Status::Unavailable("the NCCL communicator was aborted");
    if (stuck_) return Status::Unavailable("a call of NCCL's has not returned");
    return Status::Ok();
  }
  Result<NcclAnswer> State(const std::string& what) {
    HORON_TRY(Usable());
    NcclAnswer state = kNcclSuccess;
    HORON_TRY(Failed(nccl_.Check(nccl_.CommGetAsyncError(comm_, &state), what)));
    HORON_TRY(Failed(nccl_.Check(state, what)));
    return state;
  }
  // One function of NCCL's.
  template <typename F>
  Status Call(const std::string& what, bool first, const F& function) {
    return Run(what, first, [what, function, &nccl = nccl_] {
      return Asked(nccl, what, function());
    });
  }
  template <typename F>
  Status Run(const std::string& what, bool first, const F& call) {
    HORON_TRY(Usable());
    if (first) return RunApart(what, call);
    const std::shared_ptr<void> current = enter_(device_);
    return Settle(call(), what);
  }
  // The call may outlive this group.
  template <typename F>
  Status RunApart(const std::string& what, const F& call) {
    Apart apart(InDevice(enter_, device_, call), [] {});
    const auto until = NcclClock::now() + limit();
    while (!apart.returned()) {
      if (NcclClock::now() >= until && apart.Leave()) {
        stuck_ = true;
        return TooLate(what);
      }
      sched_yield();
    }
    const std::shared_ptr<void> current = enter_(device_);
    return Settle(apart.answer(), what);
  }
  // One launch. What was begun is ended, whatever is added: else NCCL would take the next call for
  // a part of it.
  Status Together(const std::string& what, bool first, Parts parts, Stream& stream) {
    return Run("start " + what, first,
               [what, parts = std::move(parts), &nccl = nccl_, comm = comm_,
                on = stream.native()]() -> Answer {
                 HORON_TRY(nccl.Check(nccl.GroupStart(), "begin " + what));
                 Status added;
                 for (const Part& part : parts) {
                   if (added.ok()) added = Add(nccl, part, comm, on);
                 }
                 const Answer ended = Asked(nccl, "start " + what, nccl.GroupEnd());
                 return added.ok() ? ended : Answer(added);
               });
  }
  static Status Add(const NcclLibrary& nccl, const Part& part, NcclComm* comm, void* on) {
    std::byte* const data = part.span.data;
    const size_t bytes = Size(part.span.bytes);
    switch (part.kind) {
      case Part::kSend:
        return nccl.Check(nccl.Send(data, bytes, kByte, part.rank, comm, on), "start a send");
      case Part::kReceive:
        return nccl.Check(nccl.Recv(data, bytes, kByte, part.rank, comm, on), "start a receive");
      case Part::kFromRoot:
        return nccl.Check(nccl.Broadcast(data, data, bytes, kByte, part.rank, comm, on),
                          "start a broadcast");
    }
    return Status::Ok();
  }
  milliseconds limit() const {
    return options_.timeout.count() > 0 ? std::min(options_.timeout, kMostSettling) : kMostSettling;
  }
  Status TooLate(const std::string& what) {
    return Failed(Status::Unavailable("NCCL did not " + what + " within " + Seconds(limit()) +
                                      ": a rank is stuck"));
  }
  // NCCL_COMM_BLOCKING=0 has it leave calls in progress.
  Status Settle(const Answer& answer, const std::string& what) {
    HORON_TRY(Failed(answer.status()));
    if (answer.value() != kNcclInProgress) return Status::Ok();
    const auto until = NcclClock::now() + limit();
    while (NcclClock::now() < until) {
      HORON_ASSIGN(const NcclAnswer state, State(what));
      if (state != kNcclInProgress) return Status::Ok();
      sched_yield();
    }
    return TooLate(what);
  }

  const NcclLibrary& nccl_;
  EnterDevice enter_;
  std::shared_ptr<NcclComm*> made_ = std::make_shared<NcclComm*>(nullptr);
  std::optional<Apart> making_;  // null once this rank has begun, or given up
  std::optional<Apart> ending_;  // null before it is left or aborted
  NcclComm* comm_ = nullptr;     // null before, and once left or aborted
  int size_, device_;
  const GpuGroupOptions options_;
  const NcclClock::time_point begun_ = NcclClock::now();
  bool met_ = false, failed_ = false;
  bool stuck_ = false;  // a call that was left behind is in it
  // The bits of the bytes; whether it was registered memory.
  std::set<std::tuple<Function, int, DataType, ReduceKind, bool>> used_;
  std::vector<Connected> connected_;  // by rank
  std::map<const std::byte*, Registered> registered_;
  std::vector<std::shared_ptr<void*>> windows_;
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
    return std::unique_ptr<GpuGroup>(
        std::make_unique<NcclGroup>(nccl_, enter_, told, size, rank, device.index, options));
  }
  MemoryRegistration registration() const override {
    if (nccl_.makes_windows()) return MemoryRegistration::kTogether;
    return nccl_.registers() ? MemoryRegistration::kEach : MemoryRegistration::kNone;
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
