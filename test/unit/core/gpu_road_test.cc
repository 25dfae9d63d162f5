// Buckets of GPU tensors on whole runtimes: who waits for whom, in which order, and what goes
// wrong. Each test ends with no complaint of any GPU about the order of its work.
#include <latch>
#include <string>

#include "test/support/catch.h"
#include "test/support/gpu_world.h"

namespace horon {
namespace {

using test::Bytes;
using test::Counting;
using test::GpuLayout;
using test::GpuRank;
using test::GpuWorld;
using test::kNccl;
using test::Values;

TEST_CASE("nobody waits for the device", "[gpu]") {
  GpuWorld world({2, 0, {kNccl, kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    rank.stream().Hold();  // the input is not there yet
    std::byte* const tensor = rank.Put(Counting(rank.me().rank(), 4));
    const auto work = rank.Submit(GpuRank::Of("w", "sum", DataType::kFloat32, {4}), tensor, tensor);
    const Status finished = rank.Synchronize(*work.value());
    const bool settled = work.value()->Settled().value();
    rank.stream().Release();
    const Values sum = test::Decode(DataType::kFloat32, rank.Get(tensor, 16));
    world.Expect(finished.ok(), "finished.ok()");
    world.Expect(!settled, "!settled");
    world.Expect(sum == Values{1, 3, 5, 7}, "sum == Values{1, 3, 5, 7}");
  });
  world.Check();
}

TEST_CASE("nobody waits for the device, whatever the op, on one rank or several", "[gpu]") {
  for (const int size : {1, 2}) {
    GpuWorld world(test::LayoutOf(size, 0, "gpu.buckets.group"));
    world.Run([&](GpuRank& rank) {
      const Bytes input = Counting(1, 8);
      std::vector<std::shared_ptr<Work>> works;
      // The group meets while nothing is held.
      for (const char* op : {"sum", "broadcast:root=0", "allgather", "alltoall", "reduce_scatter",
                             "adasum", "gossip:graph=ring"}) {
        rank.stream().Hold();
        const bool owned = op[0] == 'a' || op[0] == 'r';
        Request request = GpuRank::Of(op, op, DataType::kFloat32, {4, 2});
        if (std::string(op) == "alltoall") request.splits = {4 / size, 4 / size};
        if (std::string(op) == "alltoall" && size == 1) request.splits = {4};
        std::byte* const tensor = rank.Put(input);
        const bool own_output = owned && std::string(op) != "adasum";
        const auto work = rank.Submit(request, tensor, own_output ? nullptr : tensor);
        world.Expect(work.ok(), std::string(op) + ": " + work.status().message());
        if (!work.ok()) continue;
        const Status finished = rank.Synchronize(*work.value());
        world.Expect(finished.ok(), std::string(op) + ": " + finished.message());
        world.Expect(!work.value()->Settled().value(), std::string(op) + " has waited");
        rank.stream().Release();
        works.push_back(work.value());
      }
      rank.stream().Finish();
      auto& counters = rank.me().runtime().counters();
      world.Expect(counters["gpu.buckets.host"].value() == 0, "some went through the host");
    });
    world.Check();
  }
}

TEST_CASE("equal parts are reduced and scattered without memory of their own", "[gpu]") {
  GpuWorld world(test::LayoutOf(2, 0, "gpu.buckets.group"));
  constexpr int64_t kRows = 1 << 16, kBytes = kRows * 4;
  world.Run([&](GpuRank& rank) {
    std::vector<std::byte*> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(rank.Put(Counting(1, kRows)));
    const int64_t before = rank.gpu().taken();
    rank.stream().Hold();
    std::vector<std::shared_ptr<Work>> works;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Request request = GpuRank::Of(std::to_string(i), "reduce_scatter:op=average",
                                          DataType::kFloat32, {kRows});
      works.push_back(rank.Submit(request, tensors[i], nullptr).value());
      world.Expect(rank.me().Wait(*works.back()).ok(), "reduced");
    }
    world.Expect(rank.gpu().taken() - before == 4 * kBytes / 2, "more than the outputs");
    rank.stream().Release();
    for (auto& work : works) {
      world.Expect(rank.Synchronize(*work).ok(), "synchronized");
      const Bytes got = rank.Get(work->outputs()[0].data, kBytes / 2);
      const Bytes all = Counting(1, kRows);
      const auto half = rank.me().rank() * kBytes / 2;
      world.Expect(got == Bytes(all.begin() + half, all.begin() + half + kBytes / 2), "the mean");
    }
  });
  world.Check();
}

// Between calls that block others do not, of several tensors, too: on the share's stream.
TEST_CASE("a call that blocks works on its caller's stream", "[gpu]") {
  const int ranks = GENERATE(1, 2);
  GpuWorld world({ranks, 0, std::vector<int>(static_cast<size_t>(ranks), kNccl), ""});
  constexpr int kRounds = 50;
  world.Run([&](GpuRank& rank) {
    GpuRank beside(rank.me(), rank.gpu());
    std::vector<std::byte*> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(rank.Put(Counting(1, 4)));
    const Request request = GpuRank::Of("blocks", "sum", DataType::kFloat32, {4});
    Counter& counter = rank.me().runtime().counters()["gpu.buckets_on_callers_streams"];
    for (int round = 0; round < kRounds; ++round) {
      GpuRank& caller = round % 3 == 2 ? beside : rank;
      const bool held = round % 5 == 0;
      if (held) caller.stream().Hold();
      std::byte* const tensor = caller.Put(Counting(rank.me().rank() + round, 4));
      const int64_t before = counter.value();
      std::byte* const output_at = round % 2 == 0 ? tensor : nullptr;
      const auto work = caller.Submit(request, tensor, output_at, true).value();
      world.Expect(caller.Synchronize(*work).ok(), "it blocks until it is enqueued");
      const Output& output = work->outputs()[0];
      const bool here = counter.value() > before;
      world.Expect(!here || output.done->stream == &caller.stream(), "the caller's stream");
      if (held) {
        world.Expect(!work->Settled().value(), "the device has not begun");
        caller.stream().Release();
      }
      const double first = ranks == 1 ? round : 2 * round + 1;
      const Values sum = test::Decode(DataType::kFloat32, caller.Get(output.data, 16));
      world.Expect(sum == Values{first, first + ranks, first + 2 * ranks, first + 3 * ranks},
                   "the sum");
      const auto several = rank.SubmitTogether("several", "sum", tensors, 4).value();
      const Request other = GpuRank::Of("alone", "max", DataType::kFloat32, {4});
      const auto alone = rank.Submit(other, tensors[0], nullptr).value();
      if (round % 2 == 0) world.Expect(rank.Synchronize(*several).ok(), "several");
      world.Expect(rank.Synchronize(*alone).ok() && rank.Synchronize(*several).ok(), "all");
    }
    world.Expect(counter.value() > 0 && counter.value() <= kRounds, "some, and nothing else");
    rank.stream().Finish();
    beside.stream().Finish();
  });
  world.Check();
}

// In a job of one rank, while nobody else is awake; its work is done at once then.
TEST_CASE("a lone tensor is enqueued by the thread that submits it", "[gpu]") {
  const int ranks = GENERATE(1, 2);
  GpuWorld world({ranks, 0, std::vector<int>(static_cast<size_t>(ranks), kNccl), ""});
  constexpr int kRounds = 300, kEnough = 5;
  world.Run([&](GpuRank& rank) {
    const Request one = GpuRank::Of("one", "sum", DataType::kFloat32, {4});
    const Request next = GpuRank::Of("next", "max", DataType::kFloat32, {4});
    Counter& counter = rank.me().runtime().counters()["gpu.submits_that_launched"];
    int at_once = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::byte* const tensor = rank.Put(Counting(rank.me().rank() + round, 4));
      const int64_t before = counter.value();
      const auto work = rank.Submit(one, tensor, nullptr).value();
      const bool launched = counter.value() > before;
      if (launched) world.Expect(work->done(), "launched, so done");
      at_once += launched ? 1 : 0;
      const auto soon = rank.Submit(next, tensor, nullptr).value();
      world.Expect(rank.Synchronize(*work).ok() && rank.Synchronize(*soon).ok(), "both");
      const double first = ranks == 1 ? round : 2 * round + 1;
      const Values sum = test::Decode(DataType::kFloat32, rank.Get(work->outputs()[0].data, 16));
      world.Expect(sum == Values{first, first + ranks, first + 2 * ranks, first + 3 * ranks},
                   "the sum");
      if (round % 3 == 0) rank.stream().Finish();
      // Until nothing is left to look for.
      std::this_thread::sleep_for(std::chrono::microseconds(round % 7 * 100));
    }
    world.Expect(ranks == 1 ? at_once >= kEnough : at_once == 0, "where nobody is waited for");
    rank.stream().Finish();
  });
  world.Check();
}

TEST_CASE("what is enqueued ends well when the job is left", "[gpu]") {
  GpuWorld world({2, 0, {kNccl, kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    rank.stream().Hold();
    std::byte* const tensor = rank.Put(Counting(rank.me().rank(), 4));
    const auto work =
        rank.Submit(GpuRank::Of("w", "sum", DataType::kFloat32, {4}), tensor, tensor).value();
    world.Expect(rank.Synchronize(*work).ok(), "enqueued");
    rank.me().runtime().Shutdown();
    world.Expect(!work->Settled().value(), "the device has not begun");
    rank.stream().Release();
    world.Expect(test::Decode(DataType::kFloat32, rank.Get(tensor, 16)) == Values{1, 3, 5, 7},
                 "the sum");
  });
  world.Check();
}

// Rank's stream asks for it; that stream, or another one, reads it, and the next output that the
// other of the two asks for takes another buffer: the reading has not happened.
void DropWhileRead(bool on_another_stream) {
  GpuWorld world({2, 0, {kNccl, kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    GpuRank beside(rank.me(), rank.gpu());
    GpuRank &reader = on_another_stream ? beside : rank, &next = on_another_stream ? rank : beside;
    const auto gather = [&](GpuRank& on, const std::string& name, int64_t first) {
      std::byte* const in = on.Put(Counting(rank.me().rank() * 10 + first, 4));
      return on.Submit(GpuRank::Of(name, "allgather", DataType::kFloat32, {4}), in, nullptr)
          .value();
    };
    Bytes seen(32);
    for (int round = 0; round < 5; ++round) {
      std::shared_ptr<Work> work = gather(rank, "first", round);
      world.Expect(reader.Synchronize(*work).ok(), "the first");
      reader.stream().Finish();
      reader.stream().Hold();
      reader.Read(work->outputs()[0].data, seen);
      work.reset();
      const std::shared_ptr<Work> other = gather(next, "second", -50);
      world.Expect(next.Synchronize(*other).ok(), "the second");
      next.stream().Finish();
      reader.stream().Release();
      reader.stream().Finish();
      world.Expect(test::Decode(DataType::kFloat32, seen)[0] == round, "what was read");
    }
  });
  world.Check();
}

TEST_CASE("an output that is dropped while it is read is not used again before", "[gpu]") {
  DropWhileRead(false);
}

TEST_CASE("an output that another stream reads is not used again before", "[gpu]") {
  DropWhileRead(true);
}

TEST_CASE("an output that is dropped unread is not used again before it is written", "[gpu]") {
  GpuWorld world({2, 0, {kNccl, kNccl}, ""});
  std::latch over(1);
  world.Run([&](GpuRank& rank) {
    const int alone = rank.me().AddProcessSet({0}).value();
    Request request = GpuRank::Of("both", "allgather", DataType::kFloat32, {4});
    if (rank.me().rank() == 1) rank.stream().Hold();  // rank 0's device waits for this one
    std::shared_ptr<Work> work = rank.Submit(request, rank.Put(Counting(0, 4)), nullptr).value();
    world.Expect(rank.me().Wait(*work).ok(), "enqueued");
    if (rank.me().rank() == 1) {
      over.wait();
      rank.stream().Release();
    } else {
      work.reset();
      rank.stream().Finish();
      request.name = "alone";
      request.process_set = alone;
      request.shape = {8};  // as much
      work = rank.Submit(request, rank.Put(Counting(0, 8)), nullptr).value();
      world.Expect(rank.Synchronize(*work).ok(), "of the other set");
      rank.stream().Finish();
      over.count_down();
    }
  });
  world.Check();
}

TEST_CASE("the block of a process set grows once, but for few bytes", "[gpu]") {
  test::GpuLayout layout = test::LayoutOf(2, 0, "");
  constexpr int64_t kFused = 1 << 20;
  layout.configure_rank = [](int, Config& config) { config.fusion_bytes = kFused; };
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) {
    std::vector<std::byte*> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(rank.Put(Counting(1, 64 << 10)));
    const int64_t before = rank.gpu().taken();
    const auto reduce = [&](int64_t count) {
      const auto work = rank.SubmitTogether("of" + std::to_string(count), "sum", tensors, count);
      world.Expect(work.ok() && rank.Synchronize(*work.value()).ok(), std::to_string(count));
      return rank.gpu().taken() - before;
    };
    constexpr int64_t kFew = 16 << 10;
    world.Expect(reduce(1000) == kFew, "12 kB");
    for (const int64_t count : {8 << 10, 16 << 10, 64 << 10})
      world.Expect(reduce(count) == kFew + kFused, "up to the most that is fused");
    const Values sum = test::Decode(DataType::kFloat32, rank.Get(tensors[2], 8));
    world.Expect(sum == Values{16, 32}, "four sums of two");
  });
  world.Check();
}

TEST_CASE("of events that two threads record at the same time all are waited for", "[gpu]") {
  GpuWorld world({1, 0, {kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    std::vector<Submission> all;
    for (const char* name : {"a", "b"}) {
      std::byte* const tensor = rank.Put(Counting(1, 8));
      Request request = GpuRank::Of(name, "sum", DataType::kFloat32, {8});
      request.group = "both";
      request.group_size = 2;
      world.Expect(rank.me().runtime().GpuOf(request.device).ok(), "there is a GPU");
      SharedEvent ready = rank.gpu().Record(&rank.stream()).value();
      all.push_back({rank.me().runtime().registry().Of(std::move(request)).value(), tensor, tensor,
                     std::move(ready)});
    }
    // The thread of the later one was the first to begin, and the last to return.
    const uint64_t now = all[1].ready->over;
    all[1].ready->begun = now;
    all[0].ready->begun = now + 1;
    all[0].ready->over = now + 2;
    all[1].ready->over = now + 3;
    const auto work = std::make_shared<Work>(2);
    world.Expect(rank.me().runtime().Submit(all, work, true).ok(), "submitted");
    world.Expect(rank.Synchronize(*work).ok(), "synchronized");
    rank.stream().Finish();
  });
  world.Check();
}

TEST_CASE("of streams that have one name on several threads all are waited for", "[gpu]") {
  GpuWorld world({1, 0, {kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    test::FakeStream other(rank.gpu());
    std::vector<Submission> all;
    for (test::FakeStream* stream : {&rank.stream(), &other}) {
      std::byte* const tensor = rank.gpu().Take(32);
      stream->Enqueue("a thread's kernel", {}, {Span{tensor, 32}}, [] {});
      Request request =
          GpuRank::Of(stream == &other ? "b" : "a", "sum", DataType::kFloat32, {8});
      request.group = "both";
      request.group_size = 2;
      world.Expect(rank.me().runtime().GpuOf(request.device).ok(), "there is a GPU");
      SharedEvent ready = rank.gpu().Record(stream).value();
      ready->stream = &rank.stream();
      ready->one_stream = false;
      all.push_back({rank.me().runtime().registry().Of(std::move(request)).value(), tensor, tensor,
                     std::move(ready)});
    }
    const auto work = std::make_shared<Work>(2);
    world.Expect(rank.me().runtime().Submit(all, work, true).ok(), "submitted");
    world.Expect(rank.Synchronize(*work).ok(), "synchronized");
    rank.stream().Finish();
    other.Finish();
  });
  world.Check();
}

TEST_CASE("overlapping process sets use the devices in one order", "[gpu]") {
  GpuWorld world({3, 0, {kNccl, kNccl, kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    const std::vector<std::vector<int>> members = {{0, 1}, {1, 2}, {0, 2}};
    std::vector<int> sets;
    for (const auto& ranks : members) sets.push_back(rank.me().AddProcessSet(ranks).value());
    for (int round = 0; round < 20; ++round) {
      std::vector<std::shared_ptr<Work>> works;
      for (size_t i = 0; i < sets.size(); ++i) {
        // Each rank begins with another set.
        const size_t set = (i + static_cast<size_t>(rank.me().rank())) % sets.size();
        const bool mine =
            members[set][0] == rank.me().rank() || members[set][1] == rank.me().rank();
        if (!mine) continue;
        std::byte* const tensor = rank.Put(Counting(1, 8));
        Request request = GpuRank::Of("s", "sum", DataType::kFloat32, {8});
        request.process_set = sets[set];
        works.push_back(rank.Submit(request, tensor, tensor).value());
      }
      for (auto& work : works)
        world.Expect(rank.Synchronize(*work).ok(), "rank.Synchronize(*work).ok()");
    }
    rank.stream().Finish();
  });
  world.Check();
}

TEST_CASE("a rank that has joined has no part in a bucket of GPU tensors", "[gpu]") {
  const GpuLayout layout =
      GENERATE(GpuLayout{3, 0, {kNccl, kNccl, kNccl}, ""}, test::LayoutOf(4, 2, ""),
               test::LayoutOf(3, 1, ""), GpuLayout{3, 0, {0, 0, 0}, ""});
  const int n = layout.size;
  INFO(n << " ranks, " << layout.local_size << " a node");
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    const auto run = [&](const std::string& name, const std::string& op, int64_t rows) {
      const Shape shape = {rows, 3};
      const Result<Bytes> got = rank.RunOwned(GpuRank::Of(name, op, DataType::kFloat32, shape),
                                              Counting(me, 3 * rows));
      world.Expect(got.ok(), name + ": " + got.status().message());
      return got.ok() ? test::Decode(DataType::kFloat32, got.value()) : Values{};
    };
    const auto sums = [](int ranks, int64_t count) {  // of ranks 0, 1, ... that take part
      Values all;
      for (int64_t i = 0; i < count; ++i)
        all.push_back(static_cast<double>(ranks * i) + ranks * (ranks - 1) / 2);
      return all;
    };
    world.Expect(run("before", "sum", 1) == sums(n, 3), "not all were there");
    if (me < n - 1) {
      world.Expect(run("after", "sum", 1) == sums(n - 1, 3), "it has a part in a sum");
      Values rows, turned;
      for (int r = 0; r < n - 1; ++r) {
        for (int i = 0; i < 3; ++i) rows.push_back(r + i);
        for (int i = 0; i < 3; ++i) turned.push_back(r + 3 * me + i);
      }
      world.Expect(run("rows", "allgather", 1) == rows, "it gave rows");
      world.Expect(run("parts", "alltoall", n) == turned, "it gave parts");
      world.Expect(run("told", "broadcast:root=0", 1) == Values{0, 1, 2}, "others were told");
      const Values all = sums(n - 1, 3 * n);
      const Values mine(all.begin() + 3 * me, all.begin() + 3 * me + 3);
      world.Expect(run("scattered", "reduce_scatter", n) == mine, "it has a part in rows");
    }
    world.Expect(rank.me().Join().ok(), "it cannot join");
    world.Expect(run("again", "sum", 1) == sums(n, 3), "not all are there again");
  });
  world.Check();
}

TEST_CASE("what a rank may not do with its GPU", "[gpu]") {
  GpuWorld world({2, 0, {kNccl, kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    std::byte* const tensor = rank.Put(Counting(0, 2));
    Request request = GpuRank::Of("w", "sum", DataType::kFloat32, {2});
    world.Expect(rank.Synchronize(*rank.Submit(request, tensor, tensor).value()).ok(),
                 "rank.Synchronize(*rank.Submit(request, tensor, ten");
    request.device.index = 1;
    world.Expect(
        rank.Submit(request, tensor, tensor).status().message() ==
            "it lies on GPU 1, but this rank has used GPU 0 before: a rank works with one GPU "
            "(torch.cuda.set_device(hvd.local_rank()))",
        "rank.Submit(request, tensor, tensor).status().mess");
    request.device.index = 0;

    // One rank's tensor is on the host.
    std::vector<float> values = {1, 2};
    request.name = "mixed";
    const bool host = rank.me().rank() == 1;
    if (host) request.device = {};
    const Status status = host ? rank.me().Run(request, values.data(), values.data())
                               : rank.me().Wait(*rank.Submit(request, tensor, tensor).value());
    world.Expect(
        status.message() ==
            "Mismatched ALLREDUCE CPU/GPU device selection for tensor 'mixed': rank [0] has GPU, "
            "rank [1] has CPU.",
        "status.message() ==");
    request.device = {DeviceKind::kCuda, 0};
    request.name = "w";
    world.Expect(rank.Synchronize(*rank.Submit(request, tensor, tensor).value()).ok(),
                 "rank.Synchronize(*rank.Submit(request, tensor, ten");
    rank.stream().Finish();
  });
  world.Check();
}

// Nothing is left of what is refused: each call does all it can right after.
TEST_CASE("calls while a stream is captured into a graph are refused", "[gpu]") {
  const int ranks = GENERATE(1, 2);
  GpuWorld world({ranks, 0, std::vector<int>(static_cast<size_t>(ranks), kNccl), ""});
  world.Run([&](GpuRank& rank) {
    const Request one = GpuRank::Of("one", "sum", DataType::kFloat32, {4});
    const Request rows = GpuRank::Of("rows", "allgather", DataType::kFloat32, {4});
    std::vector<std::byte*> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(rank.Put(Counting(1, 4)));
    const auto submit = [&] { return rank.Submit(one, tensors[0], nullptr); };
    const auto run = [&] { return rank.Submit(one, tensors[0], nullptr, true); };
    const auto group = [&] { return rank.SubmitTogether("group", "max", tensors, 4); };
    const auto refused = [&](const Status& status, const std::string& what) {
      world.Expect(status.code() == Code::kUnsupported &&
                       status.message() ==
                           "its stream is being captured into a CUDA graph, and a collective "
                           "cannot be part of one: call Horon outside of the capture",
                   what + ": " + status.message());
    };
    const auto done = [&](const Result<std::shared_ptr<Work>>& work, const std::string& what) {
      const Status status = work.ok() ? rank.Synchronize(*work.value()) : work.status();
      world.Expect(status.ok(), what + ": " + status.message());
    };
    const auto sums = [&](const Result<std::shared_ptr<Work>>& work, const std::string& what) {
      done(work, what);
      const Bytes got = rank.Get(work.value()->outputs()[0].data, 16);
      world.Expect(test::Decode(DataType::kFloat32, got) ==
                       Values{1.0 * ranks, 2.0 * ranks, 3.0 * ranks, 4.0 * ranks},
                   what + ": the sum is another");
    };
    for (int round = 0; round < 3; ++round) {
      const auto earlier = submit().value();
      const auto gathered = rank.Submit(rows, tensors[1], nullptr).value();
      world.Expect(rank.me().Wait(*earlier).ok(), "enqueued");
      rank.stream().captured = true;
      refused(submit().status(), "submit");
      refused(run().status(), "run");
      refused(group().status(), "a group");
      refused(rank.Synchronize(*earlier), "to wait for a sum");
      refused(rank.Synchronize(*gathered), "to wait for an allgather");
      rank.stream().captured = false;
      sums(earlier, "the sum of before");
      done(gathered, "the allgather of before");
      sums(submit(), "submit afterwards");
      sums(run(), "run afterwards");
      done(group(), "a group afterwards");
      world.Expect(test::Decode(DataType::kFloat32, rank.Get(tensors[2], 16)) == Values{1, 2, 3, 4},
                   "the group's result is another");
    }
  });
  world.Check();
}

TEST_CASE("tensors of host and GPU in one job", "[gpu]") {
  GpuWorld world({2, 0, {kNccl, kNccl}, ""});
  world.Run([&](GpuRank& rank) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> values = {1, 2, 3};
      std::byte* const tensor = rank.Put(Counting(1, 3));
      const auto work =
          rank.Submit(GpuRank::Of("g", "sum", DataType::kFloat32, {3}), tensor, tensor).value();
      world.Expect(rank.me().Reduce("h", "sum", values).ok(), "rank.me().Reduce(");
      world.Expect(values == std::vector<float>{2, 4, 6}, "values == std::vector<float>{2, 4, 6}");
      world.Expect(rank.Synchronize(*work).ok(), "rank.Synchronize(*work).ok()");
      world.Expect(test::Decode(DataType::kFloat32, rank.Get(tensor, 12)) == Values{2, 4, 6},
                   "test::Decode(DataType::kFloat32, rank.Get(tensor,");
    }
  });
  world.Check();
}

TEST_CASE("a rank lost while devices wait for each other ends what is in flight", "[gpu]") {
  const std::string op = GENERATE("sum", "adasum", "gossip");
  GpuWorld world({2, 0, {kNccl, kNccl}, ""});
  std::latch submitted(2), looked(1), over(1);
  world.Run([&](GpuRank& rank) {
    std::byte* const tensor = rank.Put(Counting(0, 4));
    const Request request = GpuRank::Of("w", op, DataType::kFloat32, {4});
    world.Expect(rank.Synchronize(*rank.Submit(request, tensor, tensor).value()).ok(),
                 "rank.Synchronize(*rank.Submit(request, tensor, ten");
    rank.stream().Finish();
    if (rank.me().rank() == 1) rank.stream().Hold();  // its device never comes
    const auto last = rank.Submit(request, tensor, tensor).value();
    world.Expect(rank.me().Wait(*last).ok(), "enqueued on both");
    submitted.arrive_and_wait();
    if (rank.me().rank() == 1) {
      looked.wait();
      world.world->MarkDead(1, "rank 1 was killed");
      over.wait();
    } else {
      world.Expect(!last->Settled().value(), "the devices wait for each other");
      looked.count_down();
      Request next = request;
      next.name = "next";
      const auto lost = rank.Submit(next, tensor, tensor);
      const Status status = lost.ok() ? rank.me().Wait(*lost.value()) : lost.status();
      world.Expect(status.code() == Code::kUnavailable, status.message());
      world.Expect(last->HoldBack(&rank.stream()).ok(), "its event is still one");
      rank.stream().Finish();  // returns, though the other device has not come
      over.count_down();
    }
    rank.stream().Release();
  });
  RequireNone(world.verdicts);  // of an aborted device much is to complain about
}

}  // namespace
}  // namespace horon
