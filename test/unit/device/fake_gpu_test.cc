// The fake GPU finds what it is there to find.
#include "test/support/fake_gpu.h"

#include <cstring>

#include "test/support/catch.h"

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

}  // namespace
}  // namespace horon
