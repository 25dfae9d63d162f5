#include "test/support/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <optional>

namespace horon {

// What is on its way between two ranks of a communicator.
struct NcclMail {
  struct Letter {
    Span span;
    bool taken = false;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> letters;  // by from, to
  struct Window {
    int64_t bytes = 0;
    int there = 0;  // ranks
  };
  std::deque<Window> windows;  // as the ranks make them
  bool aborted = false;
};

struct NcclComm {
  int of;          // the job's rank
  int size, rank;  // in the communicator
  std::unique_ptr<GpuGroup> group;
  std::shared_ptr<NcclMail> mail;
  std::vector<const void*> windows = {};
};

namespace test {
namespace {

std::mutex live_mutex;  // for threads that may come too late
FakeNccl* live = nullptr;
int lives = 0;                      // that have been
thread_local int current = -1;      // the rank whose device is the thread's
thread_local int current_life = 0;  // and in which
thread_local int depth = 0;         // of ncclGroupStart
thread_local bool spoiled = false;  // a call of this group has failed

struct Message {
  int rank;  // in the communicator
  std::shared_ptr<NcclMail> mail;
  FakeStream* stream;
  int peer;
  Span span;
  bool sends;
};
thread_local std::vector<Message> messages;  // of this group

std::mutex mails_mutex;
std::map<std::string, std::weak_ptr<NcclMail>> mails;  // by id

DataType TypeOfNccl(int type) {
  switch (type) {
    case kNcclInt8:
      return DataType::kInt8;
    case kNcclInt32:
      return DataType::kInt32;
    case kNcclInt64:
      return DataType::kInt64;
    case kNcclFloat16:
      return DataType::kFloat16;
    case kNcclFloat32:
      return DataType::kFloat32;
    case kNcclFloat64:
      return DataType::kFloat64;
    case kNcclBfloat16:
      return DataType::kBFloat16;
    default:
      return DataType::kUInt8;
  }
}

ReduceKind KindOf(int op) {
  constexpr ReduceKind kKinds[] = {ReduceKind::kSum, ReduceKind::kProduct, ReduceKind::kMax,
                                   ReduceKind::kMin};
  return kKinds[op];
}

std::byte* Bytes(const void* data) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data));
}
FakeStream& StreamOf(void* stream) { return *static_cast<FakeStream*>(stream); }

NcclAnswer AnswerOf(const Status& status) { return status.ok() ? kNcclSuccess : kNcclSystemError; }

// On the stream's thread: all of a group's messages at once.
void Meet(NcclMail& mail, const std::vector<Message>& all, FakeGpu& gpu) {
  std::unique_lock lock(mail.mutex);
  std::vector<std::shared_ptr<NcclMail::Letter>> sent;
  for (const Message& m : all) {
    if (!m.sends) continue;
    sent.push_back(std::make_shared<NcclMail::Letter>(NcclMail::Letter{m.span}));
    mail.letters[{m.rank, m.peer}].push_back(sent.back());
  }
  mail.changed.notify_all();
  for (const Message& m : all) {
    if (m.sends) continue;
    auto& waiting = mail.letters[{m.peer, m.rank}];
    mail.changed.wait(lock, [&] { return !waiting.empty() || mail.aborted; });
    if (mail.aborted) return;
    NcclMail::Letter& letter = *waiting.front();
    if (letter.span.bytes != m.span.bytes)
      gpu.Complain("one rank sends " + std::to_string(letter.span.bytes) +
                   " bytes, another expects " + std::to_string(m.span.bytes));
    else
      std::memmove(m.span.data, letter.span.data, static_cast<size_t>(m.span.bytes));
    letter.taken = true;
    waiting.pop_front();
    mail.changed.notify_all();
  }
  mail.changed.wait(lock, [&] {
    return mail.aborted || std::all_of(sent.begin(), sent.end(), [](auto& l) { return l->taken; });
  });
}

}  // namespace

struct FakeNcclCalls {
  // Whether it came true before all ends.
  template <typename True>
  static bool WaitInside(std::unique_lock<std::mutex>& lock, const True& is_true) {
    ++live->inside_;
    while (!live->closing_ && !is_true())
      live->changed_.wait_for(lock, std::chrono::milliseconds(1));
    --live->inside_;
    live->changed_.notify_all();
    return !live->closing_;
  }
  // A call of a thread that may come when all is over. While it lives, nothing ends.
  class Stay {
   public:
    Stay() {
      std::lock_guard lock(live_mutex);
      if (live == nullptr || current_life != lives) return;
      here_ = live;
      std::lock_guard inner(here_->mutex_);
      ++here_->inside_;
    }
    ~Stay() {
      if (here_ == nullptr) return;
      std::lock_guard lock(here_->mutex_);
      --here_->inside_;
      here_->changed_.notify_all();
    }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
    bool welcome() const { return here_ != nullptr; }

   private:
    FakeNccl* here_ = nullptr;
  };
  // Notes the call; the answer that the test wants of it, if it wants one.
  static std::optional<NcclAnswer> Note(int rank, const std::string& function) {
    std::unique_lock lock(live->mutex_);
    live->calls_[rank].push_back(function);
    live->callers_[rank] = std::this_thread::get_id();
    const std::pair held(rank, function);
    if (live->held_.contains(held) &&
        !WaitInside(lock, [&held] { return !live->held_.contains(held); }))
      return kNcclSystemError;
    auto& planned = live->answers_[rank][function];
    if (planned.empty()) return std::nullopt;
    const NcclAnswer answer = planned.front();
    planned.pop_front();
    return answer;
  }
  static std::optional<NcclAnswer> Note(const NcclComm* comm, const std::string& function) {
    if (current != comm->of)
      live->gpus_.gpu(comm->of).Complain(function + " was called on another device");
    return Note(comm->of, function);
  }

  static NcclAnswer GetVersion(int* version) {
    *version = live->library_.found.version;
    return kNcclSuccess;
  }
  static NcclAnswer GetUniqueId(NcclUniqueId* id) {
    const GpuGroupId made = live->gpus_.fake_network(0).MakeId().value();
    std::memcpy(id, made.bytes.data(), sizeof *id);
    return kNcclSuccess;
  }
  static NcclAnswer CommInitRankConfig(NcclComm** comm, int size, NcclUniqueId id, int rank,
                                       NcclConfig* config) {
    const Stay stay;
    if (!stay.welcome()) return kNcclSystemError;
    if (const auto answer = Note(current, "CommInitRankConfig")) return *answer;
    GpuGroupId told;
    std::memcpy(told.bytes.data(), &id, sizeof id);
    auto made = std::make_unique<NcclComm>();
    made->of = current;
    made->size = size;
    made->rank = rank;
    made->group = live->gpus_.fake_network(current)
                      .Connect(told, size, rank, {DeviceKind::kCuda, 0}, {})
                      .value();
    {
      std::lock_guard lock(mails_mutex);
      auto& known = mails[std::string(id.bytes, sizeof id.bytes)];
      made->mail = known.lock();
      if (!made->mail) known = made->mail = std::make_shared<NcclMail>();
    }
    std::unique_lock lock(live->mutex_);
    live->config_ = *config;
    ++live->communicators_;
    if (config->blocking != 0 &&
        !WaitInside(lock, [&made] { return made->group->Ready().value(); })) {
      --live->communicators_;
      made.reset();  // before the lock, and the GPUs, are gone
      return kNcclSystemError;
    }
    live->made_.insert(made.get());
    *comm = made.release();
    return config->blocking != 0 ? kNcclSuccess : kNcclInProgress;
  }
  static NcclAnswer CommGetAsyncError(NcclComm* comm, NcclAnswer* state) {
    const Stay stay;
    if (!stay.welcome()) return kNcclSystemError;
    std::lock_guard lock(live->mutex_);
    const auto found = live->states_.find(comm->of);
    const bool said = found != live->states_.end() && found->second != kNcclSuccess;
    *state = said ? found->second : comm->group->Ready().value() ? kNcclSuccess : kNcclInProgress;
    return kNcclSuccess;
  }
  static void Drop(NcclComm* comm) {
    delete comm;
    std::lock_guard lock(live->mutex_);
    live->made_.erase(comm);
    --live->communicators_;
  }
  static NcclAnswer CommFinalize(NcclComm* comm) {
    const Stay stay;
    if (!stay.welcome()) return kNcclSystemError;
    return Note(comm, "CommFinalize").value_or(kNcclSuccess);
  }
  static NcclAnswer CommDestroy(NcclComm* comm) {
    const Stay stay;
    if (!stay.welcome()) return kNcclSystemError;
    const auto answer = Note(comm, "CommDestroy");
    Drop(comm);
    return answer.value_or(kNcclSuccess);
  }
  static NcclAnswer CommAbort(NcclComm* comm) {
    const Stay stay;
    if (!stay.welcome()) return kNcclSystemError;
    const auto answer = Note(comm, "CommAbort");
    comm->group->Abort();
    {
      std::lock_guard lock(comm->mail->mutex);
      comm->mail->aborted = true;
      comm->mail->changed.notify_all();
    }
    {
      std::unique_lock lock(live->mutex_);
      FakeGpu& gpu = live->gpus_.gpu(comm->of);
      if (live->aborts_wait_) WaitInside(lock, [&gpu] { return gpu.Rests(); });
    }
    Drop(comm);
    return answer.value_or(kNcclSuccess);
  }
  static NcclAnswer AllReduce(const void*, void* out, size_t count, int type, int op,
                              NcclComm* comm, void* stream) {
    if (const auto answer = Note(comm, "AllReduce")) return *answer;
    return AnswerOf(comm->group->Allreduce(TypeOfNccl(type), KindOf(op), Bytes(out),
                                           static_cast<int64_t>(count), StreamOf(stream)));
  }
  static NcclAnswer ReduceScatter(const void* in, void* out, size_t count, int type, int op,
                                  NcclComm* comm, void* stream) {
    if (const auto answer = Note(comm, "ReduceScatter")) return *answer;
    return AnswerOf(comm->group->ReduceScatter(TypeOfNccl(type), KindOf(op), Bytes(in), Bytes(out),
                                               static_cast<int64_t>(count), StreamOf(stream)));
  }
  static NcclAnswer AllGather(const void* in, void* out, size_t count, int, NcclComm* comm,
                              void* stream) {
    if (const auto answer = Note(comm, "AllGather")) return *answer;
    return AnswerOf(comm->group->Allgather(Bytes(in), Bytes(out), static_cast<int64_t>(count),
                                           StreamOf(stream)));
  }
  static NcclAnswer Broadcast(const void*, void* out, size_t count, int, int root, NcclComm* comm,
                              void* stream) {
    if (const auto answer = Note(comm, "Broadcast")) return *answer;
    const Span span{Bytes(out), static_cast<int64_t>(count)};
    return AnswerOf(comm->group->Broadcast({&span, 1}, root, StreamOf(stream)));
  }
  static NcclAnswer Spoil(NcclAnswer answer) {
    spoiled = spoiled || answer != kNcclSuccess;
    return answer;
  }
  static NcclAnswer Send(const void* in, size_t count, int, int peer, NcclComm* comm,
                         void* stream) {
    if (const auto answer = Note(comm, "Send")) return Spoil(*answer);
    const Span span{Bytes(in), static_cast<int64_t>(count)};
    messages.push_back({comm->rank, comm->mail, &StreamOf(stream), peer, span, true});
    return kNcclSuccess;
  }
  static NcclAnswer Recv(void* out, size_t count, int, int peer, NcclComm* comm, void* stream) {
    if (const auto answer = Note(comm, "Recv")) return Spoil(*answer);
    const Span span{Bytes(out), static_cast<int64_t>(count)};
    messages.push_back({comm->rank, comm->mail, &StreamOf(stream), peer, span, false});
    return kNcclSuccess;
  }
  static NcclAnswer GroupStart() {
    if (const auto answer = Note(current, "GroupStart")) return *answer;
    ++depth;
    return kNcclSuccess;
  }
  static NcclAnswer GroupEnd() {
    const auto planned = Note(current, "GroupEnd");
    FakeGpu& gpu = live->gpus_.gpu(current);
    if (--depth != 0) gpu.Complain("a group of NCCL calls ends that has not begun");
    std::vector<Message> all = std::exchange(messages, {});
    if (planned) return *planned;
    if (std::exchange(spoiled, false)) return kNcclInvalidArgument;
    if (all.empty()) return kNcclSuccess;
    std::vector<Span> reads, writes;
    for (Message& m : all) {
      (m.sends ? reads : writes).push_back(m.span);
      m.span.data = gpu.Inside(m.span.data);
    }
    writes.push_back({reinterpret_cast<std::byte*>(&gpu), 1});  // as fake_gpu_group.cc
    all[0].stream->Enqueue("the messages", reads, writes,
                           [mail = all[0].mail, all, &gpu] { Meet(*mail, all, gpu); });
    return kNcclSuccess;
  }
  static const char* GetErrorString(NcclAnswer answer) {
    return answer == kNcclRemoteError ? "remote process exited" : "unhandled system error";
  }
  static const char* GetLastError(NcclComm*) { return "a fake one"; }
  static NcclAnswer MemAlloc(void** memory, size_t bytes) {
    if (const auto answer = Note(current, "MemAlloc")) return *answer;
    *memory = live->gpus_.gpu(current).Take(static_cast<int64_t>(bytes));
    return kNcclSuccess;
  }
  static NcclAnswer MemFree(void* memory) {
    const auto answer = Note(current, "MemFree");
    std::lock_guard lock(live->mutex_);
    for (const NcclComm* comm : live->made_) {
      if (comm->of == current && std::count(comm->windows.begin(), comm->windows.end(), memory) > 0)
        live->gpus_.gpu(current).Complain("memory of a window is freed");
    }
    return answer.value_or(kNcclSuccess);
  }
  static NcclAnswer CommRegister(NcclComm* comm, void* memory, size_t bytes, void** handle) {
    if (const auto answer = Note(comm, "CommRegister")) return *answer;
    *handle = memory;
    return AnswerOf(comm->group->Register({Bytes(memory), static_cast<int64_t>(bytes)}));
  }
  static NcclAnswer CommDeregister(NcclComm* comm, void* handle) {
    if (const auto answer = Note(comm, "CommDeregister")) return *answer;
    return AnswerOf(comm->group->Deregister(Bytes(handle)));
  }

  // Returns when all ranks have come.
  static NcclAnswer CommWindowRegister(NcclComm* comm, void* memory, size_t bytes, void** window,
                                       int flags) {
    const Stay stay;
    if (!stay.welcome()) return kNcclSystemError;
    if (const auto answer = Note(comm, "CommWindowRegister")) return *answer;
    FakeGpu& gpu = live->gpus_.gpu(comm->of);
    if (flags != kNcclWindowSymmetric) gpu.Complain("a window that is not symmetric");
    const Span span{Bytes(memory), static_cast<int64_t>(bytes)};
    NcclMail& mail = *comm->mail;
    const size_t number = comm->windows.size();
    {
      std::lock_guard lock(mail.mutex);
      if (mail.windows.size() == number) mail.windows.push_back({span.bytes});
      if (mail.windows[number].bytes != span.bytes) gpu.Complain("windows of different sizes");
      ++mail.windows[number].there;
    }
    std::unique_lock lock(live->mutex_);
    for (const NcclComm* other : live->made_) {
      if (other->of != comm->of || other == comm) continue;
      if (std::count(other->windows.begin(), other->windows.end(), memory) > 0)
        gpu.Complain("memory is a window of two communicators");
    }
    comm->windows.push_back(memory);
    bool met = false;
    const bool told = WaitInside(lock, [&] {
      std::lock_guard inside(mail.mutex);
      met = mail.windows[number].there == comm->size;
      return met || mail.aborted;
    });
    if (!told || !met) return kNcclRemoteError;
    if (live->no_windows_) return kNcclSuccess;
    *window = memory;
    return AnswerOf(comm->group->RegisterTogether(span).status());
  }

  static NcclLibrary Table(int version, MemoryRegistration most) {
    using Fake = FakeNcclCalls;
    NcclLibrary table{.found = {version, "the fake NCCL"},
                      .GetVersion = Fake::GetVersion,
                      .GetUniqueId = Fake::GetUniqueId,
                      .CommInitRankConfig = Fake::CommInitRankConfig,
                      .CommGetAsyncError = Fake::CommGetAsyncError,
                      .CommFinalize = Fake::CommFinalize,
                      .CommDestroy = Fake::CommDestroy,
                      .CommAbort = Fake::CommAbort,
                      .AllReduce = Fake::AllReduce,
                      .ReduceScatter = Fake::ReduceScatter,
                      .AllGather = Fake::AllGather,
                      .Broadcast = Fake::Broadcast,
                      .Send = Fake::Send,
                      .Recv = Fake::Recv,
                      .GroupStart = Fake::GroupStart,
                      .GroupEnd = Fake::GroupEnd,
                      .GetErrorString = Fake::GetErrorString,
                      .GetLastError = Fake::GetLastError};
    if (most == MemoryRegistration::kNone) return table;
    table.MemAlloc = Fake::MemAlloc;
    table.MemFree = Fake::MemFree;
    table.CommRegister = Fake::CommRegister;
    table.CommDeregister = Fake::CommDeregister;
    if (most == MemoryRegistration::kTogether) table.CommWindowRegister = Fake::CommWindowRegister;
    return table;
  }
};

namespace {

// Calls that were left behind may still come back to their table, until the process is no more.
const NcclLibrary& Kept(const NcclLibrary& table) {
  static auto& all = *new std::deque<NcclLibrary>;
  return all.emplace_back(table);
}

}  // namespace

FakeNccl::FakeNccl(FakeGpus& gpus, MemoryRegistration most)
    : gpus_(gpus), library_(Kept(FakeNcclCalls::Table(gpus.fake_network(0).version(), most))) {
  {
    std::lock_guard lock(live_mutex);
    live = this;
    ++lives;
  }
  for (int rank = 0; rank < gpus.size(); ++rank) {
    networks_.push_back(MakeNcclNetwork(library_, [rank, life = lives](int) {
      current_life = life;
      const int before = std::exchange(current, rank);
      return std::shared_ptr<void>(nullptr, [before](void*) { current = before; });
    }));
    gpus.Use(rank, networks_.back().get());
  }
}

FakeNccl::~FakeNccl() {
  for (int rank = 0; rank < gpus_.size(); ++rank) gpus_.Use(rank, nullptr);
  {
    std::lock_guard lock(live_mutex);
    ++lives;  // nobody comes any more
  }
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return inside_ == 0; });
  }
  for (NcclComm* const comm : made_) delete comm;  // of calls that were left behind
  std::lock_guard lock(live_mutex);
  live = nullptr;
}

void FakeNccl::Answer(int rank, const std::string& function, NcclAnswer answer, int times) {
  std::lock_guard lock(mutex_);
  auto& planned = answers_[rank][function];
  planned.insert(planned.end(), static_cast<size_t>(times), answer);
}

void FakeNccl::SetState(int rank, NcclAnswer state) {
  std::lock_guard lock(mutex_);
  states_[rank] = state;
}

void FakeNccl::Hold(int rank, const std::string& function) {
  std::lock_guard lock(mutex_);
  held_.insert({rank, function});
}

void FakeNccl::MakesNoWindows() {
  std::lock_guard lock(mutex_);
  no_windows_ = true;
}

void FakeNccl::AbortsWait() {
  std::lock_guard lock(mutex_);
  aborts_wait_ = true;
}

void FakeNccl::Recover() {
  std::lock_guard lock(mutex_);
  held_.clear();
  changed_.notify_all();
  answers_.clear();
  states_.clear();
}

std::vector<std::string> FakeNccl::calls(int rank) const {
  std::lock_guard lock(mutex_);
  const auto found = calls_.find(rank);
  return found == calls_.end() ? std::vector<std::string>{} : found->second;
}

size_t FakeNccl::times(int rank, const std::string& function) const {
  const std::vector<std::string> all = calls(rank);
  return static_cast<size_t>(std::count(all.begin(), all.end(), function));
}

std::thread::id FakeNccl::last_caller(int rank) const {
  std::lock_guard lock(mutex_);
  return callers_.at(rank);
}

NcclConfig FakeNccl::config() const {
  std::lock_guard lock(mutex_);
  return config_;
}

size_t FakeNccl::communicators() const {
  std::lock_guard lock(mutex_);
  return communicators_;
}

}  // namespace test
}  // namespace horon
