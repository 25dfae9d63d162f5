// The fake GPU finds what it is there to find.
#include "test/support/fake_gpu.h"

#include <cstring>
#include <thread>

#include "runtime/transport/shm.h"
#include "test/support/catch.h"
#include "test/support/gpu_transport.h"

namespace horon {
namespace {

using test::FakeGpu;
using test::FakeStream;

TEST_CASE("a fake GPU complains of work that no event puts in order", "[gpu]") {
  FakeGpu gpu;
  FakeStream writer(gpu), reader(gpu);
  std::byte* const a = gpu.Take(64);
  std::byte* const b = gpu.Take(64);
  REQUIRE(writer.Copy(a, b, 64).ok());
  SECTION("a read without an event") {
    REQUIRE(reader.Copy(b, a, 64).ok());
    REQUIRE(gpu.complaints().size() == 2);  // reads a, and writes b that the other reads
  }
  SECTION("an event that was recorded too early") {
    FakeStream third(gpu);
    const SharedEvent early = third.Record().value();
    REQUIRE(early->HoldBack(&reader).ok());
    REQUIRE(reader.Copy(b + 32, a + 32, 32).ok());
    REQUIRE(gpu.complaints().size() == 2);
  }
  SECTION("an event between") {
    const SharedEvent event = writer.Record().value();
    REQUIRE(event->HoldBack(&reader).ok());
    REQUIRE(reader.Copy(b, a, 64).ok());
    REQUIRE(gpu.complaints().empty());
  }
  SECTION("events over a third stream") {
    FakeStream third(gpu);
    REQUIRE(writer.Record().value()->HoldBack(&third).ok());
    REQUIRE(third.Record().value()->HoldBack(&reader).ok());
    REQUIRE(reader.Copy(b, a, 64).ok());
    REQUIRE(gpu.complaints().empty());
  }
  SECTION("a host that has seen it done") {
    const SharedEvent event = writer.Record().value();
    writer.Finish();
    REQUIRE(event->Done().value());
    REQUIRE(reader.Copy(b, a, 64).ok());
    REQUIRE(gpu.complaints().empty());
  }
}

// A message to its own rank, out of this memory or into it.
void PostTo(FakeGpu& gpu, Transfer::Direction direction, const Span& span) {
  test::GpuTransport transport(std::make_unique<SelfTransport>(0), gpu, false);
  Transfer transfer;
  transfer.direction = direction;
  transfer.peer = 0;
  transfer.tag = kLetterTag;
  transfer.spans = {span};
  REQUIRE(transport.Post(transfer).ok());
  transfer.Cancel();
}

TEST_CASE("a fake GPU complains of messages in pinned memory that streams use", "[gpu]") {
  constexpr auto kSend = Transfer::Direction::kSend, kReceive = Transfer::Direction::kReceive;
  FakeGpu gpu;
  const auto memory = gpu.MakePinnedMemory();
  FakeStream stream(gpu);
  std::byte* const on_device = gpu.Take(64);
  std::byte* const pinned = memory->Allocate(64).value();
  SECTION("it is sent before it is written") {
    REQUIRE(stream.Copy(pinned, on_device, 32).ok());
    PostTo(gpu, kSend, {pinned + 32, 32});
    REQUIRE(gpu.complaints().empty());
    PostTo(gpu, kSend, {pinned + 16, 32});
    REQUIRE(gpu.complaints() == std::vector<std::string>{
                                    "a message reads what stream 1 writes, without an event "
                                    "between"});
  }
  SECTION("what comes overwrites it before it is read") {
    REQUIRE(stream.Copy(on_device, pinned, 64).ok());
    PostTo(gpu, kSend, {pinned, 64});  // both read it
    REQUIRE(gpu.complaints().empty());
    PostTo(gpu, kReceive, {pinned, 64});
    REQUIRE(gpu.complaints() == std::vector<std::string>{
                                    "a message writes what stream 1 reads, without an event "
                                    "between"});
  }
  SECTION("a host that has asked whether it is done") {
    stream.Hold();
    REQUIRE(stream.Copy(pinned, on_device, 64).ok());
    const SharedEvent copied = stream.Record().value();
    REQUIRE(!copied->Done().value());
    PostTo(gpu, kSend, {pinned, 64});
    REQUIRE(gpu.complaints().size() == 1);
    stream.Release();
    while (!copied->Done().value()) std::this_thread::yield();
    PostTo(gpu, kSend, {pinned, 64});
    PostTo(gpu, kReceive, {pinned, 64});
    REQUIRE(gpu.complaints().size() == 1);
  }
  SECTION("memory that is not pinned, or not any more") {
    std::byte plain[64];
    stream.Enqueue("a kernel", {}, {{plain, 64}, {pinned, 64}}, [] {});
    PostTo(gpu, kSend, {plain, 64});
    memory->Free(pinned, 64);
    PostTo(gpu, kSend, {pinned, 64});
    REQUIRE(gpu.complaints().empty());
    return;
  }
  stream.Finish();
  memory->Free(pinned, 64);
}

TEST_CASE("a fake stream works in order, later, and can be held", "[gpu]") {
  FakeGpu gpu;
  FakeStream stream(gpu);
  std::byte* const at = gpu.Take(4);
  stream.Hold();
  for (int i = 1; i <= 3; ++i) {
    stream.Enqueue("a kernel", {}, {{at, 4}}, [&, i] { std::memcpy(gpu.Inside(at), &i, 4); });
  }
  const SharedEvent event = stream.Record().value();
  REQUIRE(!event->Done().value());
  stream.Release();
  stream.Finish();
  REQUIRE(event->Done().value());
  int last = 0;
  std::memcpy(&last, gpu.Inside(at), 4);
  REQUIRE(last == 3);
}

TEST_CASE("a fake GPU that is lost does nothing more, and says so", "[gpu]") {
  FakeGpu gpu;
  FakeStream stream(gpu), waits(gpu);
  std::byte* const at = gpu.Take(4);
  const auto memory = gpu.MakeMemory(), pinned = gpu.MakePinnedMemory();
  stream.Hold();
  int done = 0;
  stream.Enqueue("a kernel", {}, {{at, 4}}, [&] { ++done; });
  const SharedEvent event = stream.Record().value();
  REQUIRE(event->HoldBack(&waits).ok());
  gpu.Lose(Status::Unavailable("lost"));
  for (const Status& status :
       {event->Done().status(), event->HoldBack(&waits), stream.Record().status(),
        gpu.Record(&stream).status(), stream.Copy(at, at, 4), stream.Zero(at, 4),
        gpu.MakeStream(PairKernels::kFused).status(), memory->Allocate(4).status(),
        pinned->Allocate(4).status()}) {
    REQUIRE(status.code() == Code::kUnavailable);
    REQUIRE(status.message() == "lost");
  }
  stream.Enqueue("a kernel", {}, {{at, 4}}, [&] { ++done; });
  stream.Finish();
  waits.Finish();
  REQUIRE(done == 0);
}

TEST_CASE("a fake stream that is captured takes and gives no events", "[gpu]") {
  FakeGpu gpu;
  FakeStream captured(gpu), other(gpu);
  captured.captured = true;
  const SharedEvent event = other.Record().value();
  REQUIRE(gpu.Record(&captured).status().code() == Code::kUnsupported);
  REQUIRE(event->HoldBack(&captured).code() == Code::kUnsupported);
  REQUIRE(gpu.Record(&other).ok());
  captured.captured = false;
  REQUIRE(gpu.Record(&captured).ok());
  REQUIRE(event->HoldBack(&captured).ok());
}

}  // namespace
}  // namespace horon
