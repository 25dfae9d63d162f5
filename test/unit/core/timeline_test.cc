// The parts of a timeline one by one: the ring, the clock, the file, the JSON.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "runtime/base/bounded_ring.h"
#include "runtime/base/clock_offset.h"
#include "runtime/base/look.h"
#include "runtime/base/timeline_file.h"
#include "runtime/core/timeline_event.h"
#include "runtime/core/timeline_recording.h"
#include "test/support/catch.h"
#include "test/support/folder.h"

namespace horon {
namespace {

using test::Folder;
using test::Text;

TEST_CASE("a full ring drops what comes and counts it; what it took comes out in order") {
  BoundedRing<int> ring(4);
  for (int i = 0; i < 6; ++i) CHECK(ring.Put(int{i}) == (i < 4));
  CHECK(ring.dropped() == 2);
  for (int i = 0; i < 4; ++i) CHECK(ring.Take() == i);
  CHECK(!ring.Take());
  CHECK(ring.Put(7));
  CHECK(ring.size() == 1);
  CHECK(ring.Take() == 7);
}

TEST_CASE("two threads at a ring: everything put comes out once, in order") {
  constexpr uint64_t kItems = 200000;
  BoundedRing<std::vector<uint64_t>> ring(64);
  uint64_t put = 0, wrong = 0, taken = 0;
  std::atomic<bool> done{false};
  std::thread taker([&] {
    uint64_t last = 0;
    for (bool more = true; more;) {
      more = !done.load(std::memory_order_acquire);
      while (auto item = ring.Take()) {
        wrong += item->size() != 1 || (*item)[0] <= last;
        last = (*item)[0];
        ++taken;
        more = true;
      }
      std::this_thread::yield();
    }
  });
  for (uint64_t i = 1; i <= kItems; ++i) put += ring.Put(std::vector<uint64_t>{i});
  done.store(true, std::memory_order_release);
  taker.join();
  CHECK(wrong == 0);
  CHECK(taken == put);
  CHECK(put + ring.dropped() == kItems);
}

TEST_CASE("a clock's offset is within its bound, however unlike the two ways are") {
  constexpr int64_t kTrue = -123456789;
  ClockOffset offset;
  CHECK_FALSE(offset.known());
  int64_t now = 1000;
  for (const auto& [there, back] : {std::pair<int64_t, int64_t>{900, 100}, {5, 800}, {60, 70}}) {
    const int64_t heard = now + there + kTrue, told = heard + 5000;
    offset.Add({now, heard, told, told - kTrue + back});
    REQUIRE(offset.known());
    CHECK(std::abs(offset.offset() - kTrue) <= offset.bound());
    now += 100000;
  }
  CHECK(offset.bound() == 65);  // of the quickest exchange
  offset.Add({100, 50, 60, 116});
  CHECK(offset.bound() == 3);
  offset.Add({100, 50, 60, 109});  // answered before it can have been: not counted
  CHECK(offset.bound() == 3);
}

TEST_CASE("ranks append to one file, which is whole after every piece") {
  const Folder folder;
  auto first = TimelineFile::Create(folder / "t.json", "7");
  REQUIRE(first.ok());
  auto second = TimelineFile::Open(folder / "t.json", "7");
  REQUIRE(second.ok());
  REQUIRE(first.value().Append("{\"a\":1}").ok());
  REQUIRE(second.value().Append("{\"b\":2},\n{\"c\":3}").ok());
  REQUIRE(first.value().Append("{\"d\":4}").ok());
  const std::string text = Text(folder / "t.json");
  CHECK(text.ends_with("},\n{\"a\":1},\n{\"b\":2},\n{\"c\":3},\n{\"d\":4}\n]\n"));
  CHECK(text.starts_with("[\n{"));
  auto other = TimelineFile::Open(folder / "t.json", "8");  // of another recording
  REQUIRE(other.ok());
  CHECK(Text(folder / "t.json").find("\"d\"") == std::string::npos);
}

TEST_CASE("what a killed rank left torn is cut away, wherever it is torn") {
  const std::string piece = ",\n{\"long\":\"event\"},\n{\"x\":[1,2]}\n]\n";
  for (size_t kept = 0; kept <= piece.size(); ++kept) {
    const Folder folder;
    auto file = TimelineFile::Create(folder / "t.json", "1");
    REQUIRE(file.ok());
    REQUIRE(file.value().Append("{\"a\":1}").ok());
    const int fd = open((folder / "t.json").c_str(), O_WRONLY);
    const off_t end = lseek(fd, 0, SEEK_END) - 3;
    REQUIRE(pwrite(fd, piece.data(), kept, end) == static_cast<ssize_t>(kept));
    REQUIRE((kept < 3 || ftruncate(fd, end + static_cast<off_t>(kept)) == 0));
    close(fd);
    REQUIRE(file.value().Append("{\"b\":2}").ok());
    const std::string text = Text(folder / "t.json");
    INFO(kept << ": " << text);
    CHECK(text.ends_with("},\n{\"b\":2}\n]\n"));
    CHECK(text.find("{\"a\":1},\n") != std::string::npos);
    CHECK(text.find("},\n,") == std::string::npos);
  }
}

TEST_CASE("a timeline that cannot be written is an error with the file's name") {
  const auto file = TimelineFile::Create("/nowhere/t.json", "1");
  REQUIRE_FALSE(file.ok());
  CHECK(file.status().message().find("/nowhere/t.json") != std::string::npos);
}

TEST_CASE("a lock of the file that is never let go holds nobody up for ever") {
  const Folder folder;
  auto file = TimelineFile::Create(folder / "t.json", "1");
  REQUIRE(file.ok());
  const int other = open((folder / "t.json").c_str(), O_RDWR);  // of a rank that is stopped
  REQUIRE(flock(other, LOCK_EX) == 0);
  const Status status = file.value().Append("{\"a\":1}");
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.message().find(folder / "t.json") != std::string::npos);
  SetLook([] { return 1; });  // the program breaks it off
  const auto begun = std::chrono::steady_clock::now();
  CHECK(TimelineFile::Create(folder / "t.json", "2").status().code() == Code::kAborted);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds{1});
  SetLook(nullptr);
  close(other);
  CHECK(file.value().Append("{\"b\":2}").ok());
  CHECK(Text(folder / "t.json").ends_with("},\n{\"b\":2}\n]\n"));
}

TEST_CASE("names become JSON, whatever is in them") {
  CHECK(JsonText("layer \"1\"\\\n\t\x01") == "\"layer \\\"1\\\"\\\\\\u000a\\u0009\\u0001\"");
  CHECK(JsonText("gr\xc3\xa4"
                 "d") ==
        "\"gr\xc3\xa4"
        "d\"");
}

TimelineEvent SampleEvent(OpTable& ops) {
  Request request;
  request.name = "w";
  request.op = "average";
  request.shape = {2, 3};
  TimelineEvent event;
  event.what = std::make_shared<Registration>(request, ops.Find("average").value());
  event.stamps = {1000, 2000};
  event.started = 5000;
  event.finished = 90000;
  event.phases.begun = 6000;
  event.phases.sent = 8000;
  event.phases.arrived = 70000;
  event.phases.packing = 1500;
  event.phases.reducing = 30000;
  event.phases.unpacking = 9000;
  event.step = 12;
  event.algorithm = "magic";
  return event;
}

TEST_CASE("a tensor's phases follow each other, in rank 0's time") {
  OpTable ops;
  TimelineText text(3, {.offset = 500, .bound = 10, .epoch = 0});
  std::string out;
  text.Write(SampleEvent(ops), out);
  for (const char* want :
       {"\"name\":\"w\"", "\"QUEUE\",\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":1.500,\"dur\":1.000",
        "\"NEGOTIATE_ALLREDUCE\",\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":2.500,\"dur\":3.000",
        "\"ALLREDUCE\",\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":5.500,\"dur\":85.000",
        "\"PACK\",\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":6.500,\"dur\":2.000",
        "\"WIRE\",\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":8.500,\"dur\":62.000",
        "\"UNPACK\",\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":70.500,\"dur\":20.000",
        "\"algorithm\":\"magic\"", "\"step\":12", "\"shape\":[2,3]"}) {
    INFO(want << " in " << out);
    CHECK(out.find(want) != std::string::npos);
  }
  out.clear();
  TimelineEvent locked = SampleEvent(ops);
  locked.locked = {4, 5, 6};
  text.Write(locked, out);
  CHECK(out.find("SCHEDULE_ALLREDUCE") != std::string::npos);
  CHECK(out.find("\"negotiated\":false,\"schedule\":4,\"batch\":6") != std::string::npos);
  CHECK(out.find("thread_name") == std::string::npos);  // the row has its name already
}

TEST_CASE("what programs note has rows of its own, beside a tensor of the same name") {
  OpTable ops;
  TimelineText text(3, {.offset = 500, .bound = 10, .epoch = 0});
  std::string out;
  text.Write(SampleEvent(ops), out);
  out.clear();
  for (const char* activity : {"read \"x\"", "forward"})
    text.Write(TimelineNote{"w", activity, 1000, 3000}, out);
  INFO(out);
  for (const char* want :
       {"{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":3,\"tid\":2,\"args\":{\"name\":\"w\"}},\n",
        "\n{\"name\":\"read "
        "\\\"x\\\"\",\"ph\":\"X\",\"pid\":3,\"tid\":2,\"ts\":1.500,\"dur\":2.000",
        "}},\n{\"name\":\"forward\",\"ph\":\"X\",\"pid\":3,\"tid\":2,"})
    CHECK(out.find(want) != std::string::npos);
  CHECK(out.find("thread_name") == out.rfind("thread_name"));
}

TEST_CASE("what gossip counts is tracks of its own, from the recording's beginning on") {
  Counters counters;
  counters["gossip.bytes.to.3"].Add(100);
  const int64_t begun = SteadyNow();
  TimelineCounters tracks(counters);
  TimelineText text(2, {0, 0, begun});
  std::string out;
  tracks.Write(begun + 1000, text, out);
  CHECK(out.empty());  // nothing since then
  counters["gossip.bytes.to.3"].Add(20);
  counters["gossip.bytes.to.11"].Add(4);
  counters["pair.staleness.4+"].Add(0);
  counters["executor.buckets.1"].Add(5);
  tracks.Write(begun + 2000, text, out);
  const std::string head = R"({"name":"gossip.bytes.to","ph":"C","pid":2,"tid":0,"ts":)";
  CHECK(out.starts_with(head));
  CHECK(out.find(R"("args":{"11":0,"3":0}})") < out.find(",\n"));
  CHECK(out.ends_with(",\n" + head + R"(2.000,"args":{"11":4,"3":20}})"));
  out.clear();
  tracks.Write(begun + 3000, text, out);
  CHECK(out.empty());
  counters["pair.staleness.4+"].Add();
  tracks.Write(begun + 4000, text, out);
  CHECK(out.ends_with(R"("ph":"C","pid":2,"tid":0,"ts":4.000,"args":{"4+":1}})"));
}

// What the holder of the baton pays for a tensor that has been through, as Executor's Trace does
// it, and a look at the clock. The ring takes all: its thread waits for rank 0's clock.
TEST_CASE("a timeline's event costs little on the road", "[.][cost][timeline]") {
  constexpr int kRounds = 20, kEvents = 5000;
  const Folder folder;
  Request request;
  request.name = "DistributedOptimizer.layer4.1.conv2.weight";
  const auto what = std::make_shared<Registration>(std::move(request), nullptr);
  TimelineOrder order;
  order.begin = true;
  order.path = folder / "cost.json";
  double best = 1e9;
  int64_t kept = 0;
  for (int run = 0; run < 5; ++run) {
    const Counters counters;
    TimelineRecording recording(1, order, std::make_shared<TimelineProgress>(), counters, 1 << 17);
    TimelineEvent event;
    event.algorithm = "ring";
    for (int round = 0; round < kRounds; ++round) {
      const int64_t begun = SteadyNow();
      for (int i = 0; i < kEvents; ++i) {
        TimelineEvent one = event;
        one.what = what;
        one.stamps.taken = SteadyNow();
        kept += recording.Put(std::move(one)) ? 1 : 0;
      }
      best = std::min(best, static_cast<double>(SteadyNow() - begun) / kEvents);
    }
  }
  WARN(best << " ns an event");
  CHECK(kept == 5 * kRounds * kEvents);
  CHECK(best < 100);
}

}  // namespace
}  // namespace horon
