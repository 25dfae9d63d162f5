// A rank whose device is lost: it and all others get an error with the device's words, nobody waits
// for ever, and the job ends.
#include <barrier>
#include <functional>
#include <string>
#include <thread>

#include "test/support/catch.h"
#include "test/support/gpu_world.h"

namespace horon {
namespace {

using test::Counting;
using test::GpuLayout;
using test::GpuRank;
using test::GpuWorld;
using test::LayoutOf;

constexpr int64_t kCount = 4;
const std::string kWords =
    "CUDA could not finish what was enqueued on GPU 0: unspecified launch failure";

bool SaysWhy(const Status& status) {
  return status.code() == Code::kUnavailable && status.message().find(kWords) != std::string::npos;
}

void Lose(GpuRank& rank) { rank.gpu().Lose(Status::Unavailable(kWords)); }

// By NCCL; between nodes; through the host, where lanes or messages carry it.
std::vector<GpuLayout> Layouts() {
  std::vector<GpuLayout> layouts = {LayoutOf(2, 0, "gpu.buckets.group"),
                                    LayoutOf(2, 1, "gpu.buckets.nodes"),
                                    {2, 0, {0, 0}, "gpu.buckets.host"},
                                    {2, 0, {0, 0}, "gpu.buckets.host"}};
  layouts[1].launched = true;
  layouts[3].lanes = false;
  return layouts;
}

std::string Describe(const GpuLayout& layout) {
  return std::string(layout.way) + (layout.lanes ? "" : ", without lanes");
}

// Only NCCL's collectives are finished, as handles, before the device has done them.
bool ByGroup(const GpuLayout& layout) { return std::string(layout.way) == "gpu.buckets.group"; }

Request Sum(const std::string& name) {
  return GpuRank::Of(name, "sum", DataType::kFloat32, {kCount});
}

// With the event of a call before the device was lost.
Result<std::shared_ptr<Work>> SubmitAfter(GpuRank& rank, const SharedEvent& ready,
                                          const std::string& name, std::byte* tensor,
                                          bool blocks = false) {
  HORON_ASSIGN(SharedRegistration what, rank.me().runtime().registry().Of(Sum(name)));
  Submission one{std::move(what), tensor, tensor, ready};
  auto work = std::make_shared<Work>(1);
  if (blocks) work->WillBlock();
  HORON_TRY(rank.me().runtime().Submit({&one, 1}, work, !blocks));
  return work;
}

Status RunSum(GpuRank& rank, const std::string& name, std::byte* tensor) {
  const auto work = rank.Submit(Sum(name), tensor, tensor);
  return work.ok() ? rank.Synchronize(*work.value()) : work.status();
}

// Sums of the host until one fails, so that the runtime of each rank is awake.
Status UntilItEnds(GpuRank& rank) {
  std::vector<float> values = {1};
  while (true) {
    const Status status = rank.me().Reduce("host", "sum", values);
    if (!status.ok()) return status;
  }
}

// Calls after that, and the end of the job.
void ExpectNothingMore(GpuWorld& world, GpuRank& rank, std::byte* tensor) {
  for (const char* name : {"w", "another"}) {
    const Status status = RunSum(rank, name, tensor);
    world.Expect(SaysWhy(status), "afterwards: " + status.message());
  }
  rank.me().runtime().Shutdown();
  rank.stream().Finish();  // nothing waits for the other device any more
}

TEST_CASE("a device that is lost between a call and its start ends the job", "[gpu]") {
  const bool used = GENERATE(false, true);
  for (const GpuLayout& layout : Layouts()) {
    INFO(Describe(layout) << (used ? ", used before" : ""));
    GpuWorld world(layout);
    std::barrier together(2);
    world.Run([&](GpuRank& rank) {
      std::byte* const tensor = rank.Put(Counting(rank.me().rank(), kCount));
      world.Expect(rank.me().runtime().GpuOf({DeviceKind::kCuda, 0}).ok(), "there is a GPU");
      if (used) world.Expect(RunSum(rank, "w", tensor).ok(), "while it is there");
      const SharedEvent ready = rank.gpu().Record(&rank.stream()).value();
      together.arrive_and_wait();
      if (rank.me().rank() == 1) Lose(rank);
      together.arrive_and_wait();
      const auto work = SubmitAfter(rank, ready, "w", tensor);
      world.Expect(work.ok(), work.status().message());
      if (!work.ok()) return;
      Status status = rank.me().Wait(*work.value());
      if (rank.me().rank() == 0 && status.ok() && ByGroup(layout)) status = UntilItEnds(rank);
      world.Expect(SaysWhy(status), status.message());
      ExpectNothingMore(world, rank, tensor);
    });
    RequireNone(world.verdicts);
  }
}

// On both ranks of each layout, whose sum "w" has come out.
using Afterwards = std::function<void(const GpuLayout&, GpuWorld&, GpuRank&, std::byte* tensor,
                                      std::barrier<>& together)>;
void AfterASum(const Afterwards& body) {
  for (const GpuLayout& layout : Layouts()) {
    INFO(Describe(layout));
    GpuWorld world(layout);
    std::barrier together(2);
    world.Run([&](GpuRank& rank) {
      std::byte* const tensor = rank.Put(Counting(rank.me().rank(), kCount));
      world.Expect(RunSum(rank, "w", tensor).ok(), "while it is there");
      rank.stream().Finish();
      body(layout, world, rank, tensor, together);
    });
    RequireNone(world.verdicts);
  }
}

TEST_CASE("a device that is lost with a sum in its hands ends the job", "[gpu]") {
  AfterASum([](const GpuLayout& layout, GpuWorld& world, GpuRank& rank, std::byte* tensor,
               std::barrier<>& together) {
    Counter& counter = rank.me().runtime().counters()[layout.way];
    const int64_t begun = counter.value();
    if (rank.me().rank() == 1) rank.stream().Hold();
    rank.Put(Counting(0, kCount));
    const auto work = rank.Submit(Sum("w"), tensor, tensor).value();
    while (counter.value() == begun) std::this_thread::yield();
    Status status;
    if (ByGroup(layout)) {
      status = rank.me().Wait(*work);
      world.Expect(status.ok(), "enqueued: " + status.message());
    }
    together.arrive_and_wait();  // all have begun
    if (rank.me().rank() == 1) Lose(rank);
    status = ByGroup(layout) ? UntilItEnds(rank) : rank.me().Wait(*work);
    world.Expect(SaysWhy(status), status.message());
    if (rank.me().rank() == 1 && ByGroup(layout)) {
      world.Expect(SaysWhy(work->Settled().status()), "whether it is done");
      world.Expect(SaysWhy(work->HoldBack(&rank.stream())), "to wait for it");
    }
    ExpectNothingMore(world, rank, tensor);
  });
}

// The runtime asks the device as well, and the others hear of it.
TEST_CASE("a device that is lost between two sums is told to all", "[gpu]") {
  AfterASum([](const GpuLayout&, GpuWorld& world, GpuRank& rank, std::byte* tensor,
               std::barrier<>& together) {
    together.arrive_and_wait();
    if (rank.me().rank() == 1) {
      Lose(rank);
      world.Expect(SaysWhy(rank.Submit(Sum("w"), tensor, tensor).status()), "the next call");
    }
    const Status status = UntilItEnds(rank);
    world.Expect(SaysWhy(status), status.message());
    ExpectNothingMore(world, rank, tensor);
  });
}

TEST_CASE("a rank alone goes on without its device as far as it can", "[gpu]") {
  GpuWorld world(LayoutOf(1, 0, ""));
  world.Run([&](GpuRank& rank) {
    std::byte* const tensor = rank.Put(Counting(1, kCount));
    world.Expect(RunSum(rank, "w", tensor).ok(), "while it is there");
    const SharedEvent ready = rank.gpu().Record(&rank.stream()).value();
    rank.stream().Hold();
    rank.Put(Counting(1, kCount));
    const auto held = rank.Submit(Sum("w"), tensor, tensor).value();
    world.Expect(rank.me().Wait(*held).ok(), "enqueued");
    Lose(rank);
    world.Expect(SaysWhy(held->Settled().status()), "whether it is done");
    world.Expect(SaysWhy(held->HoldBack(&rank.stream())), "to wait for it");
    for (const char* op : {"sum", "allgather", "adasum"}) {
      Request request = Sum(std::string("by ") + op);
      request.op = op;
      world.Expect(SaysWhy(rank.Submit(request, tensor, nullptr).status()), op);
    }
    // Those whose event is from before, too, whichever thread enqueues them.
    for (const bool blocks : {false, true, false, true}) {
      const auto work = SubmitAfter(rank, ready, "w", tensor, blocks).value();
      const Status status = rank.me().Wait(*work);
      world.Expect(SaysWhy(status), status.message());
    }
    std::vector<float> values = {1};
    world.Expect(rank.me().Reduce("host", "sum", values).ok(), "tensors of the host go on");
    rank.me().runtime().Shutdown();
    rank.stream().Finish();
  });
  RequireNone(world.verdicts);
}

}  // namespace
}  // namespace horon
