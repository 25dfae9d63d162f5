// What NCCL is called with and in which order, and what is made of its answers: a communicator over
// a table of functions (test/support/fake_nccl.h), without a GPU.
#include <atomic>
#include <functional>
#include <thread>

#include "test/support/catch.h"
#include "test/support/fake_nccl.h"
#include "test/support/reference.h"

namespace horon {
namespace {

using test::FakeGpus;
using test::FakeNccl;
using test::FakeStream;
using Calls = std::vector<std::string>;

constexpr Device kGpu{DeviceKind::kCuda, 0};
constexpr std::chrono::milliseconds kSoon{200};

// Two ranks, connected unless a test does it.
struct Ranks {
  explicit Ranks(const GpuGroupOptions& wanted = {}, bool connected = true)
      : options(wanted), id(nccl.network(0).MakeId().value()) {
    if (!connected) return;
    for (const int rank : {0, 1}) groups[rank] = Connect(rank).value();
    for (const int rank : {0, 1}) REQUIRE(Met(rank).ok());
  }
  // Once all have come, or it is an error.
  Status Met(int rank) {
    Result<bool> met = false;
    while (met.ok() && !met.value()) {
      std::this_thread::yield();
      met = groups[rank]->Ready();
    }
    return met.status();
  }
  void Until(const std::function<bool()>& is_true) {
    while (!is_true()) std::this_thread::yield();
  }
  Result<std::unique_ptr<GpuGroup>> Connect(int rank) {
    return nccl.network(rank).Connect(id, 2, rank, kGpu, options);
  }
  // Float 1 and 2 on the device.
  std::byte* Put(int rank) {
    std::byte* const at = gpus.gpu(rank).Take(4);
    const float value = static_cast<float>(rank + 1);
    streams[rank].Enqueue("a kernel", {}, {{at, 4}}, [to = gpus.gpu(rank).Inside(at), value] {
      std::memcpy(to, &value, sizeof value);
    });
    return at;
  }
  Status Sum(int rank, std::byte* at) {
    return groups[rank]->Allreduce(DataType::kFloat32, ReduceKind::kSum, at, 1, streams[rank]);
  }
  // Leaves, or aborts, and is gone.
  void End(int rank) {
    groups[rank]->Leave();
    Until([&] { return groups[rank]->gone(); });
    groups[rank].reset();
  }
  // What rank 0 has called since the communicator was made.
  Calls calls() const {
    Calls all = nccl.calls(0);
    return {all.begin() + 1, all.end()};
  }

  FakeGpus gpus{{23007, 23007}};
  FakeNccl nccl{gpus};
  FakeStream streams[2]{FakeStream{gpus.gpu(0)}, FakeStream{gpus.gpu(1)}};
  GpuGroupOptions options;
  GpuGroupId id;
  std::unique_ptr<GpuGroup> groups[2];
};

bool Says(const Status& status, const std::string& words) {
  INFO(status.message());
  return status.code() == Code::kUnavailable && status.message().find(words) != std::string::npos;
}

TEST_CASE("an NCCL communicator blocks another thread, and takes what the user allows", "[nccl]") {
  Ranks ranks({.max_ctas = 4}, false);
  ranks.groups[0] = ranks.Connect(0).value();
  ranks.Until([&] { return ranks.nccl.communicators() == 1; });
  REQUIRE(ranks.nccl.last_caller(0) != std::this_thread::get_id());
  REQUIRE(ranks.nccl.config().blocking == 1);
  REQUIRE(ranks.nccl.config().max_ctas == 4);
  REQUIRE(ranks.nccl.config().min_ctas == NcclConfig::kUndefined);
  REQUIRE(!ranks.groups[0]->Ready().value());
  REQUIRE(ranks.groups[0]->Check().ok());
  ranks.options.max_ctas = 0;
  ranks.groups[1] = ranks.Connect(1).value();
  REQUIRE(ranks.Met(0).ok());
  REQUIRE(ranks.Met(1).ok());
  REQUIRE(ranks.nccl.config().max_ctas == NcclConfig::kUndefined);
  REQUIRE(ranks.gpus.complaints() == Calls{});
}

TEST_CASE("what NCCL may have to connect is called apart, and all else here", "[nccl]") {
  Ranks ranks;
  std::byte* const at = ranks.gpus.gpu(0).Take(4096);
  const auto apart = [&](const Status& status) {
    REQUIRE(status.ok());
    return ranks.nccl.last_caller(0) != std::this_thread::get_id();
  };
  GpuGroup& group = *ranks.groups[0];
  FakeStream& stream = ranks.streams[0];
  const auto sum = [&](int64_t count) {
    return group.Allreduce(DataType::kInt32, ReduceKind::kSum, at, count, stream);
  };
  REQUIRE(apart(sum(1)));
  REQUIRE(!apart(sum(1)));
  REQUIRE(apart(sum(1000)));
  REQUIRE(!apart(sum(900)));
  REQUIRE(apart(group.Allreduce(DataType::kInt32, ReduceKind::kMax, at, 1, stream)));
  REQUIRE(apart(group.Allreduce(DataType::kInt8, ReduceKind::kSum, at, 4, stream)));
  REQUIRE(apart(group.Allgather(at, at, 4, stream)));
  REQUIRE(!apart(group.Allgather(at, at, 4, stream)));
  const Span to_other[2] = {{}, {at, 4}}, to_self[2] = {{at, 4}, {}};
  REQUIRE(apart(group.Exchange(to_other, to_self, stream)));
  REQUIRE(!apart(group.Exchange(to_other, to_self, stream)));
  REQUIRE(apart(group.Exchange(to_self, to_self, stream)));
  REQUIRE(apart(group.Broadcast({to_self, 1}, 0, stream)));
  REQUIRE(!apart(group.Broadcast({to_self, 1}, 0, stream)));
  group.Abort();  // nobody else takes part
}

TEST_CASE("a call of NCCL's that does not return is left behind", "[nccl]") {
  Ranks ranks({.timeout = kSoon});
  std::byte* const at = ranks.Put(0);
  ranks.nccl.Hold(0, "AllReduce");
  REQUIRE(Says(ranks.Sum(0, at), "NCCL did not start an allreduce within 0.2 s: a rank is stuck"));
  REQUIRE(Says(ranks.Sum(0, at), "a call of NCCL's has not returned"));
  REQUIRE(Says(ranks.groups[0]->Check(), "a call of NCCL's has not returned"));
  REQUIRE(ranks.groups[0]->stuck());
  ranks.groups[0]->Abort();
  REQUIRE(!ranks.groups[0]->gone());
  ranks.groups[0].reset();  // would pull away what that call uses
  REQUIRE(ranks.calls() == Calls{"AllReduce"});
}

TEST_CASE("a farewell waits for other ranks, and nobody for it", "[nccl]") {
  for (const bool finalizes : {true, false}) {
    Ranks ranks;
    const char* const what = finalizes ? "CommFinalize" : "CommDestroy";
    ranks.nccl.Hold(0, what);
    ranks.groups[0]->Leave();
    ranks.Until([&] { return ranks.nccl.times(0, what) == 1; });
    ranks.groups[0]->Leave();
    ranks.groups[0]->Abort();  // too late: it is at it
    REQUIRE(!ranks.groups[0]->gone());
    REQUIRE(!ranks.groups[0]->stuck());
    ranks.nccl.Recover();
    ranks.Until([&] { return ranks.groups[0]->gone(); });
    REQUIRE(ranks.calls() == Calls{"CommFinalize", "CommDestroy"});
  }
}

TEST_CASE("an abort takes its time elsewhere", "[nccl]") {
  Ranks ranks;
  ranks.nccl.Hold(0, "CommAbort");
  ranks.groups[0]->Abort();
  REQUIRE(!ranks.groups[0]->gone());
  REQUIRE(Says(ranks.groups[0]->Check(), "the NCCL communicator was aborted"));
  ranks.nccl.Recover();
  ranks.Until([&] { return ranks.groups[0]->gone(); });
  REQUIRE(ranks.nccl.communicators() == 1);
}

TEST_CASE("a farewell that NCCL leaves in progress is waited for, and then ended", "[nccl]") {
  for (const bool comes : {true, false}) {
    Ranks ranks({.timeout = kSoon});
    ranks.nccl.Answer(0, "CommFinalize", kNcclInProgress);
    if (!comes) ranks.nccl.SetState(0, kNcclInProgress);
    ranks.groups[0]->Leave();
    ranks.Until([&] { return ranks.groups[0]->gone(); });
    REQUIRE(ranks.calls() == Calls{"CommFinalize", comes ? "CommDestroy" : "CommAbort"});
  }
}

TEST_CASE("a call that comes back late is nobody's any more", "[nccl]") {
  Ranks ranks({.timeout = kSoon});
  std::byte* const at = ranks.Put(0);
  ranks.nccl.Hold(0, "AllReduce");
  REQUIRE(Says(ranks.Sum(0, at), "a rank is stuck"));
  ranks.nccl.Recover();
  REQUIRE(ranks.Sum(1, ranks.Put(1)).ok());
  ranks.groups[0].reset();
  ranks.groups[1]->Abort();
  REQUIRE(ranks.calls() == Calls{"AllReduce"});
}

TEST_CASE("a communicator that is made too late is aborted by who made it", "[nccl]") {
  Ranks ranks({}, false);
  ranks.groups[0] = ranks.Connect(0).value();
  ranks.groups[0].reset();
  ranks.groups[1] = ranks.Connect(1).value();
  REQUIRE(ranks.Met(1).ok());
  ranks.Until([&] { return ranks.nccl.times(0, "CommAbort") == 1; });
  ranks.groups[1]->Abort();
  ranks.Until([&] { return ranks.nccl.communicators() == 0; });
}

TEST_CASE("ranks that do not come to an NCCL communicator in time are an error", "[nccl]") {
  Ranks ranks({.timeout = kSoon}, false);
  const auto begun = std::chrono::steady_clock::now();
  ranks.groups[0] = ranks.Connect(0).value();
  Result<bool> met = false;
  while (met.ok()) {
    REQUIRE(!met.value());
    REQUIRE(std::chrono::steady_clock::now() - begun < std::chrono::seconds(20));
    std::this_thread::yield();
    met = ranks.groups[0]->Ready();
  }
  REQUIRE(std::chrono::steady_clock::now() - begun >= kSoon);
  REQUIRE(Says(met.status(), "NCCL did not bring 2 ranks together within 0.2 s"));
  ranks.groups[0].reset();  // waits for nobody
  REQUIRE(ranks.calls() == Calls{});
}

TEST_CASE("a communicator that NCCL does not begin is an error in NCCL's words", "[nccl]") {
  Ranks ranks({}, false);
  ranks.nccl.Answer(0, "CommInitRankConfig", kNcclSystemError);
  ranks.groups[0] = ranks.Connect(0).value();
  REQUIRE(Says(ranks.Met(0),
               "NCCL could not begin a communicator on GPU 0: unhandled system error; its last "
               "words: a fake one"));
  REQUIRE(ranks.nccl.communicators() == 0);
}

TEST_CASE("what NCCL notices later ends the communicator without a farewell", "[nccl]") {
  Ranks ranks;
  REQUIRE(ranks.groups[0]->Check().ok());
  ranks.nccl.SetState(0, kNcclRemoteError);
  REQUIRE(Says(ranks.groups[0]->Check(), "NCCL could not go on: remote process exited"));
  REQUIRE(Says(ranks.groups[0]->Ready().status(), "remote process exited"));
  ranks.End(0);
  REQUIRE(ranks.calls() == Calls{"CommAbort"});
}

TEST_CASE("a call that NCCL leaves in progress is waited for, but not for ever", "[nccl]") {
  Ranks ranks({.timeout = kSoon});
  std::byte* const at = ranks.Put(0);
  ranks.nccl.Answer(0, "AllReduce", kNcclInProgress, 2);
  REQUIRE(ranks.Sum(0, at).ok());  // it is not any more when NCCL is asked
  ranks.nccl.SetState(0, kNcclInProgress);
  REQUIRE(Says(ranks.Sum(0, at), "NCCL did not start an allreduce within 0.2 s: a rank is stuck"));
  ranks.nccl.SetState(0, kNcclSuccess);
  ranks.End(0);
  REQUIRE(ranks.calls() == Calls{"AllReduce", "AllReduce", "CommAbort"});
}

TEST_CASE("what NCCL refuses is an error, and a group of calls that was begun is ended", "[nccl]") {
  Ranks ranks;
  std::byte* const at = ranks.Put(0);
  ranks.nccl.Answer(0, "AllReduce", kNcclInvalidArgument);
  REQUIRE(Says(ranks.Sum(0, at), "NCCL could not start an allreduce"));
  const Span none[2] = {}, send[2] = {{}, {at, 4}}, recv[2] = {{}, {at, 4}};
  ranks.nccl.Answer(0, "Send", kNcclSystemError);
  REQUIRE(Says(ranks.groups[0]->Exchange(send, recv, ranks.streams[0]), "start a send"));
  ranks.nccl.Answer(0, "GroupStart", kNcclSystemError);
  REQUIRE(Says(ranks.groups[0]->Broadcast(send, 0, ranks.streams[0]), "begin a broadcast"));
  ranks.nccl.Answer(0, "GroupEnd", kNcclSystemError);
  REQUIRE(Says(ranks.groups[0]->Exchange(none, none, ranks.streams[0]), "start an exchange"));
  REQUIRE(ranks.calls() == Calls{"AllReduce", "GroupStart", "Send", "GroupEnd", "GroupStart",
                                 "GroupStart", "GroupEnd"});
}

TEST_CASE("an aborted communicator is called no more, and says so", "[nccl]") {
  Ranks ranks;
  std::byte* const at = ranks.Put(0);
  ranks.groups[0]->Abort();
  ranks.groups[0]->Abort();
  const Span two[2] = {{at, 4}, {at, 4}};
  GpuGroup& group = *ranks.groups[0];
  FakeStream& stream = ranks.streams[0];
  for (const Status& status :
       {group.Check(), group.Ready().status(), ranks.Sum(0, at),
        group.ReduceScatter(DataType::kFloat32, ReduceKind::kSum, at, at, 1, stream),
        group.Allgather(at, at, 4, stream), group.Broadcast(two, 0, stream),
        group.Exchange(two, two, stream), group.Register({at, 4})})
    REQUIRE(Says(status, "the NCCL communicator was aborted"));
  ranks.End(0);
  REQUIRE(ranks.calls() == Calls{"CommAbort"});
}

TEST_CASE("a communicator is finalized before it is destroyed, or aborted", "[nccl]") {
  for (const bool parts : {true, false}) {
    Ranks ranks;
    if (!parts) ranks.nccl.Answer(0, "CommFinalize", kNcclSystemError);
    ranks.End(0);
    REQUIRE(ranks.calls() == Calls{"CommFinalize", parts ? "CommDestroy" : "CommAbort"});
    ranks.End(1);
    REQUIRE(ranks.nccl.communicators() == 0);
  }
}

TEST_CASE("collectives of nothing are none", "[nccl]") {
  Ranks ranks;
  GpuGroup& group = *ranks.groups[0];
  FakeStream& stream = ranks.streams[0];
  REQUIRE(group.Allreduce(DataType::kFloat32, ReduceKind::kSum, nullptr, 0, stream).ok());
  REQUIRE(group.ReduceScatter(DataType::kBool, ReduceKind::kSum, nullptr, nullptr, 0, stream).ok());
  REQUIRE(group.Allgather(nullptr, nullptr, 0, stream).ok());
  REQUIRE(ranks.calls() == Calls{});
}

TEST_CASE("an NCCL that registers memory is given it", "[nccl]") {
  Ranks ranks;
  const auto memory = ranks.nccl.network(0).MakeMemory(kGpu);
  std::byte* const block = memory->Allocate(64).value();
  REQUIRE(ranks.groups[0]->Register({block, 64}).ok());
  REQUIRE(ranks.groups[0]->Deregister(block).ok());
  REQUIRE(ranks.groups[0]->Deregister(block).ok());  // is none any more
  memory->Free(block, 64);
  REQUIRE(ranks.calls() == Calls{"MemAlloc", "CommRegister", "CommDeregister", "MemFree"});
  ranks.nccl.Answer(0, "MemAlloc", kNcclSystemError);
  REQUIRE(Says(memory->Allocate(64).status(), "NCCL could not allocate 64 bytes on GPU 0"));
  ranks.nccl.Answer(0, "CommRegister", kNcclSystemError);
  REQUIRE(Says(ranks.groups[0]->Register({block, 64}), "NCCL could not register memory"));
  REQUIRE(ranks.gpus.complaints() == Calls{});
}

TEST_CASE("an NCCL without registration gives no memory for it, and says so", "[nccl]") {
  FakeGpus gpus({21805});
  FakeNccl older(gpus, MemoryRegistration::kNone);
  REQUIRE(older.network(0).registration() == MemoryRegistration::kNone);
  REQUIRE(older.network(0).MakeMemory(kGpu) == nullptr);
  const auto alone =
      older.network(0).Connect(older.network(0).MakeId().value(), 1, 0, kGpu, {}).value();
  while (!alone->Ready().value()) std::this_thread::yield();
  REQUIRE(alone->Register({nullptr, 0}).code() == Code::kUnsupported);
  REQUIRE(alone->RegisterTogether({nullptr, 0}).status().code() == Code::kUnsupported);
}

TEST_CASE("an NCCL without windows registers memory by each rank alone", "[nccl]") {
  FakeGpus gpus({21903});
  FakeNccl older(gpus, MemoryRegistration::kEach);
  REQUIRE(older.network(0).registration() == MemoryRegistration::kEach);
  REQUIRE(older.network(0).MakeMemory(kGpu) != nullptr);
  const auto alone =
      older.network(0).Connect(older.network(0).MakeId().value(), 1, 0, kGpu, {}).value();
  while (!alone->Ready().value()) std::this_thread::yield();
  REQUIRE(alone->RegisterTogether({nullptr, 0}).status().code() == Code::kUnsupported);
}

TEST_CASE("what all ranks register together waits for all of them, elsewhere", "[nccl]") {
  Ranks ranks;
  REQUIRE(ranks.nccl.network(0).registration() == MemoryRegistration::kTogether);
  std::unique_ptr<Memory> memories[2];
  std::byte* blocks[2];
  for (const int rank : {0, 1}) {
    memories[rank] = ranks.nccl.network(rank).MakeMemory(kGpu);
    blocks[rank] = memories[rank]->Allocate(64).value();
  }
  const auto now_apart = [&] {
    REQUIRE(ranks.Sum(0, ranks.Put(0)).ok());
    return ranks.nccl.last_caller(0) != std::this_thread::get_id();
  };
  now_apart();
  REQUIRE(!now_apart());
  std::atomic<bool> registered = false;
  Result<MemoryRegistration> first = MemoryRegistration::kNone;
  std::thread thread([&] {
    first = ranks.groups[0]->RegisterTogether({blocks[0], 64});
    registered = true;
  });
  ranks.Until([&] { return ranks.nccl.times(0, "CommWindowRegister") == 1; });
  const bool too_soon = registered;
  const auto second = ranks.groups[1]->RegisterTogether({blocks[1], 64});
  thread.join();
  REQUIRE(!too_soon);
  REQUIRE(first.value() == MemoryRegistration::kTogether);
  REQUIRE(second.value() == MemoryRegistration::kTogether);
  REQUIRE(ranks.nccl.last_caller(1) != std::this_thread::get_id());
  REQUIRE(now_apart());  // it may choose another way with it
  for (int sums = 0; sums < 3; ++sums) REQUIRE(ranks.Sum(1, ranks.Put(1)).ok());
  for (const int rank : {0, 1}) ranks.streams[rank].Finish();
  for (const int rank : {0, 1}) {
    ranks.End(rank);  // nothing is given back before
    memories[rank]->Free(blocks[rank], 64);
    REQUIRE(ranks.nccl.times(rank, "CommDeregister") == 0);
  }
  REQUIRE(ranks.gpus.complaints() == Calls{});
}

TEST_CASE("GPUs that do not reach each other's memory register it by each rank", "[nccl]") {
  Ranks ranks;
  ranks.nccl.MakesNoWindows();
  Result<MemoryRegistration> done[2] = {MemoryRegistration::kNone, MemoryRegistration::kNone};
  std::byte* const blocks[2] = {ranks.gpus.gpu(0).Take(64), ranks.gpus.gpu(1).Take(64)};
  std::thread thread([&] { done[0] = ranks.groups[0]->RegisterTogether({blocks[0], 64}); });
  done[1] = ranks.groups[1]->RegisterTogether({blocks[1], 64});
  thread.join();
  for (const auto& one : done) REQUIRE(one.value() == MemoryRegistration::kEach);
  REQUIRE(ranks.calls() == Calls{"CommWindowRegister", "CommRegister"});
  REQUIRE(ranks.gpus.complaints() == Calls{});
}

TEST_CASE("each kind of memory has its own first call", "[nccl]") {
  Ranks ranks;
  std::byte* const block = ranks.gpus.gpu(0).Take(4096);
  std::byte* const plain = ranks.gpus.gpu(0).Take(4096);
  REQUIRE(ranks.groups[0]->Register({block, 4096}).ok());
  const auto apart = [&](const Status& status) {
    REQUIRE(status.ok());
    return ranks.nccl.last_caller(0) != std::this_thread::get_id();
  };
  GpuGroup& group = *ranks.groups[0];
  FakeStream& stream = ranks.streams[0];
  for (std::byte* const at : {block, plain}) {
    const auto sum = [&] {
      return apart(group.Allreduce(DataType::kFloat32, ReduceKind::kSum, at, 100, stream));
    };
    const Span to_other[2] = {{}, {at, 4}}, to_self[2] = {{at, 4}, {}};
    REQUIRE(sum());
    REQUIRE(!sum());
    REQUIRE(apart(group.Exchange(to_other, to_self, stream)));
    REQUIRE(!apart(group.Exchange(to_other, to_self, stream)));
    REQUIRE(apart(group.Allgather(at, at, 4, stream)));
    REQUIRE(!apart(group.Allgather(at, at, 4, stream)));
  }
  group.Abort();  // nobody else takes part
}

TEST_CASE("a rank that does not come to register memory with all is an error", "[nccl]") {
  Ranks ranks({.timeout = kSoon});
  std::byte* const block = ranks.gpus.gpu(0).Take(64);
  REQUIRE(Says(ranks.groups[0]->RegisterTogether({block, 64}).status(),
               "NCCL did not register memory with all ranks within 0.2 s: a rank is stuck"));
  REQUIRE(ranks.groups[0]->stuck());
  ranks.nccl.Answer(1, "CommWindowRegister", kNcclSystemError);
  REQUIRE(Says(ranks.groups[1]->RegisterTogether({block, 64}).status(),
               "NCCL could not register memory with all ranks: unhandled system error"));
}

TEST_CASE("where nothing but NCCL will do, one that is not there is named", "[nccl]") {
  FakeGpus gpus({0});
  const auto needing = gpus.Of(0, {.nccl_needed = true});
  const Status status = needing->Of(kGpu).status();
  REQUIRE(status.code() == Code::kUnsupported);
  REQUIRE(status.message().find("HORON_INTER=nccl, but there is no NCCL that it could use: none "
                                "here") == 0);
  REQUIRE(gpus.Of(0)->Of(kGpu).ok());
}

}  // namespace
}  // namespace horon
