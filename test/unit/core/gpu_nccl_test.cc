// Whole runtimes over NCCL's functions: what NCCL notices, or does not, ends the job with an error
// on every rank, and the next one begins anew. Each rank's GPU checks the order of its work.
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
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
using test::kNccl;
using test::LayoutOf;
using test::Values;

GpuLayout OverNccl(int size, int local_size = 0) {
  GpuLayout layout = LayoutOf(size, local_size, "");
  layout.functions = true;
  return layout;
}

// A sum that must come out.
void ExpectSum(GpuWorld& world, GpuRank& rank, const std::string& name, int64_t count) {
  std::byte* const tensor = rank.Put(Counting(1, count));
  const auto work =
      rank.Submit(GpuRank::Of(name, "sum", DataType::kFloat32, {count}), tensor, tensor);
  const Status status = work.ok() ? rank.Synchronize(*work.value()) : work.status();
  world.Expect(status.ok(), name + ": " + status.message());
  if (!status.ok()) return;
  Values expected = test::Decode(DataType::kFloat32, Counting(1, count));
  for (double& value : expected) value *= world.size();
  world.Expect(test::Decode(DataType::kFloat32, rank.Get(tensor, count * 4)) == expected, name);
}

// Again and again, until it fails: what is said.
Status FailingSum(GpuRank& rank, const std::string& op = "sum") {
  std::byte* const tensor = rank.Put(Counting(0, 1));
  const Request request = GpuRank::Of("again", op, DataType::kFloat32, {1});
  while (true) {
    const auto work = rank.Submit(request, tensor, tensor);
    const Status status = work.ok() ? rank.me().Wait(*work.value()) : work.status();
    if (!status.ok()) return status;
  }
}

// A job that fails on all ranks in a way that `spoil` brings about, and one after it.
void FailAndBeginAnew(const GpuLayout& layout, const std::string& said,
                      const std::function<void(test::FakeNccl&)>& spoil,
                      const std::string& op = "sum") {
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) { ExpectSum(world, rank, "before", 100); });
  spoil(*world.nccl);
  std::vector<Status> ends(static_cast<size_t>(layout.size));
  world.Run([&](GpuRank& rank) {
    ends[static_cast<size_t>(rank.me().rank())] = FailingSum(rank, op);
  });
  bool told = false;
  for (int rank = 0; rank < layout.size; ++rank) {
    const Status& end = ends[static_cast<size_t>(rank)];
    INFO("rank " << rank << ": " << end.message());
    CHECK(end.code() == Code::kUnavailable);
    while (world.nccl->times(rank, "CommAbort") == 0) std::this_thread::yield();
    CHECK(world.nccl->times(rank, "CommAbort") == 1);
    CHECK(world.nccl->times(rank, "CommFinalize") == 0);
    told = told || end.message().find(said) != std::string::npos;
  }
  CHECK(told);
  while (world.nccl->communicators() != 0) std::this_thread::yield();
  world.nccl->Recover();
  world.Begin(layout);
  world.Run([&](GpuRank& rank) { ExpectSum(world, rank, "after", 100); });
  for (int rank = 0; rank < layout.size; ++rank)
    CHECK(world.nccl->times(rank, "CommInitRankConfig") == 2);
  world.Check();
}

TEST_CASE("an error that NCCL notices later ends the job, and the next one begins anew",
          "[gpu][nccl]") {
  FailAndBeginAnew(OverNccl(3), "NCCL could not go on: remote process exited",
                   [](test::FakeNccl& nccl) { nccl.SetState(1, kNcclRemoteError); });
}

TEST_CASE("a call that NCCL refuses ends the job, and the next one begins anew", "[gpu][nccl]") {
  FailAndBeginAnew(OverNccl(2),
                   "NCCL could not start an allreduce: unhandled system error; its last words",
                   [](test::FakeNccl& nccl) { nccl.Answer(1, "AllReduce", kNcclSystemError); });
}

TEST_CASE("a collective that the GPU does not end in time ends the job", "[gpu][nccl]") {
  GpuLayout layout = OverNccl(2);
  layout.choices.groups.timeout = std::chrono::milliseconds(300);
  // Rank 1's GPU does not come: it was told nothing.
  FailAndBeginAnew(
      layout,
      "the GPU has been at one NCCL collective, or has waited for its input, "
      "for 0.3 s (HORON_NCCL_TIMEOUT): a rank is stuck",
      [](test::FakeNccl& nccl) { nccl.Answer(1, "AllReduce", kNcclSuccess, 1'000'000); });
}

TEST_CASE("a collective inside nodes that the GPU does not end in time ends the job",
          "[gpu][nccl]") {
  GpuLayout layout = OverNccl(4, 2);
  layout.launched = true;  // who fails says so; else the other node asks for 30 s
  layout.choices.groups.timeout = std::chrono::milliseconds(300);
  const std::string words =
      "the GPU has been at one NCCL collective, or has waited for its input, for 0.3 s";
  FailAndBeginAnew(layout, words, [](test::FakeNccl& nccl) {
    for (const char* function : {"ReduceScatter", "AllGather"})
      nccl.Answer(1, function, kNcclSuccess, 1'000'000);
  });
  FailAndBeginAnew(
      layout, words,
      [](test::FakeNccl& nccl) { nccl.Answer(1, "GroupEnd", kNcclSuccess, 1'000'000); }, "adasum");
}

TEST_CASE("a call of NCCL's that does not return ends the job", "[gpu][nccl]") {
  GpuLayout layout = OverNccl(2);
  layout.choices.groups.timeout = std::chrono::milliseconds(300);
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) { ExpectSum(world, rank, "before", 100); });
  world.nccl->Hold(0, "AllReduce");
  std::vector<Status> ends(2);
  world.Run([&](GpuRank& rank) { ends[static_cast<size_t>(rank.me().rank())] = FailingSum(rank); });
  for (const Status& end : ends) {
    INFO(end.message());
    CHECK(end.code() == Code::kUnavailable);
    CHECK(end.message().find("NCCL did not start an allreduce within 0.3 s: a rank is stuck") !=
          std::string::npos);
  }
  CHECK(world.nccl->times(0, "CommAbort") == 0);  // it would pull away what that call uses
  while (world.nccl->times(1, "CommAbort") == 0) std::this_thread::yield();
  world.world.reset();  // and it is left
  world.Check();
}

// Holds back what buckets of a rank of the second node, of two with two ranks, send to the first
// one, and hear from it, while it is closed.
class Gate final : public test::WrappedTransport {
 public:
  Gate(std::unique_ptr<Transport> inner, const std::atomic<bool>& closed)
      : WrappedTransport(std::move(inner)), closed_(closed) {}
  Status Post(Transfer& transfer) override {
    if (!closed_ || transfer.peer >= 2 || transfer.tag < Communicator::kTags)
      return WrappedTransport::Post(transfer);
    Take(transfer);
    held_.push_back(&transfer);
    return Status::Ok();
  }
  Result<bool> Progress() override {
    if (!closed_) {
      for (Transfer* transfer : std::exchange(held_, {}))
        HORON_TRY(WrappedTransport::Post(*transfer));
    }
    return WrappedTransport::Progress();
  }
  void Cancel(Transfer& transfer) override {
    if (std::erase(held_, &transfer) == 0) return WrappedTransport::Cancel(transfer);
    Withdraw(transfer);
  }
  std::chrono::microseconds poll_interval() const override {
    return held_.empty() ? WrappedTransport::poll_interval() : std::chrono::microseconds{50};
  }

 private:
  const std::atomic<bool>& closed_;
  std::vector<Transfer*> held_;
};

// A sum of the host of ranks 2 and 3, which have come as far as they can with what came before it.
void ExpectSumBehind(GpuWorld& world, GpuRank& rank, int node, const std::string& name) {
  float value = 1;
  Request near;
  near.name = name;
  near.op = "sum";
  near.shape = {1};
  near.process_set = node;
  world.Expect(rank.me().Run(near, &value, &value).ok(), name);
}

GpuLayout TwoNodes(std::atomic<bool>& closed, int of_rank) {
  GpuLayout layout = OverNccl(4, 2);
  layout.wrap = [&closed, of_rank](int rank, std::unique_ptr<Transport> inner)
      -> std::unique_ptr<Transport> {
    if (rank != of_rank) return inner;
    return std::make_unique<Gate>(std::move(inner), closed);
  };
  return layout;
}

using Works = std::vector<std::shared_ptr<Work>>;

// An op of `count` elements in a set, begun.
void Begin(GpuWorld& world, GpuRank& rank, const std::string& op, int set, int64_t count,
           Works& works) {
  std::byte* const tensor = rank.Put(Counting(1, count));
  const std::string name = op + " of " + std::to_string(count);
  Request request = GpuRank::Of(name, op, DataType::kFloat32, {count});
  request.process_set = set;
  const auto work = rank.Submit(request, tensor, op == "allgather" ? nullptr : tensor);
  world.Expect(work.ok(), name + ": " + work.status().message());
  if (work.ok()) works.push_back(work.value());
}

void ExpectEnd(GpuWorld& world, GpuRank& rank, const Works& works) {
  for (const auto& work : works) world.Expect(rank.Synchronize(*work).ok(), "synchronized");
}

// Two nodes of two ranks; what one of the second node sends to the first is held back at times.
struct HeldBack {
  HeldBack(int of_rank, MemoryRegistration registration = MemoryRegistration::kNone)
      : world([&] {
          GpuLayout layout = TwoNodes(closed, of_rank);
          layout.choices.groups.registration = registration;
          return layout;
        }()) {}
  // After `before`, and while messages are held back, all begin something in which rank `early`
  // must not call that function of NCCL's until they go on; then it has to.
  void Expect(GpuRank& rank, int early, int node, const std::string& function,
              const std::function<void(Works&)>& before, const std::function<void(Works&)>& begin) {
    const int me = rank.me().rank();
    Works works;
    meeting.arrive_and_wait();
    closed = true;
    meeting.arrive_and_wait();
    const size_t times = world.nccl->times(early, function);
    before(works);
    meeting.arrive_and_wait();
    begin(works);
    if (me >= 2) ExpectSumBehind(world, rank, node, "host behind " + function);
    if (me == early)
      world.Expect(world.nccl->times(early, function) == times, function + " was called early");
    meeting.arrive_and_wait();
    closed = false;
    ExpectEnd(world, rank, works);
    world.Expect(world.nccl->times(early, function) > times || me != early,
                 function + " was not called");
  }
  std::atomic<bool> closed{false};
  std::barrier<> meeting{4};
  GpuWorld world;
};

// Until a bucket over nodes has begun here that `begin` brings about.
void AwaitNodes(GpuRank& rank, const std::function<void()>& begin) {
  auto& begun = rank.me().runtime().counters()["gpu.buckets.nodes"];
  const int64_t before = begun.value();
  begin();
  while (begun.value() == before) std::this_thread::yield();
}

TEST_CASE("behind messages between nodes a node's ranks come to NCCL together", "[gpu][nccl]") {
  HeldBack held(2);
  held.world.Run([&](GpuRank& rank) {
    const int node = rank.me().AddProcessSet({2, 3}).value();
    ExpectSum(held.world, rank, "before", 100);
    for (const auto& [op, function] : std::vector<std::pair<std::string, std::string>>{
             {"sum", "AllGather"}, {"broadcast:root=0", "Broadcast"}, {"allgather", "Send"}}) {
      held.Expect(rank, 3, node, function, [](Works&) {}, [&, op = op](Works& works) {
        AwaitNodes(rank, [&] { Begin(held.world, rank, op, 0, 5000, works); });
      });
    }
  });
  held.world.Check();
}

// A sum of {1, 3}, the messages of which rank 3 has begun.
void BeginMessages(GpuWorld& world, GpuRank& rank, int across, Works& works) {
  const int me = rank.me().rank();
  if (me == 1) Begin(world, rank, "sum", across, 50, works);
  if (me == 3) AwaitNodes(rank, [&] { Begin(world, rank, "sum", across, 50, works); });
}

TEST_CASE("a set inside a node comes to NCCL together behind another set's messages",
          "[gpu][nccl]") {
  HeldBack held(3);
  held.world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    const int across = rank.me().AddProcessSet({1, 3}).value();
    const int node = rank.me().AddProcessSet({2, 3}).value();
    Works first;  // all have met, and know their ways
    if (me == 1 || me == 3) Begin(held.world, rank, "sum", across, 10, first);
    if (me >= 2) Begin(held.world, rank, "sum", node, 10, first);
    ExpectEnd(held.world, rank, first);
    for (const auto& [op, function] : std::vector<std::pair<std::string, std::string>>{
             {"sum", "AllReduce"}, {"broadcast:root=2", "Broadcast"}, {"allgather", "Send"}}) {
      held.Expect(rank, 2, node, function,
                  [&](Works& works) { BeginMessages(held.world, rank, across, works); },
                  [&, op = op](Works& works) {
                    if (me >= 2) Begin(held.world, rank, op, node, 5000, works);
                  });
    }
  });
  held.world.Check();
}

TEST_CASE("ranks register memory together when all of a node have come", "[gpu][nccl]") {
  HeldBack held(3, MemoryRegistration::kTogether);
  held.world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    const int across = rank.me().AddProcessSet({1, 3}).value();
    const int node = rank.me().AddProcessSet({2, 3}).value();
    ExpectSum(held.world, rank, "before", 100);
    Works first;
    if (me == 1 || me == 3) Begin(held.world, rank, "sum", across, 10, first);
    ExpectEnd(held.world, rank, first);
    held.Expect(rank, 2, node, "CommWindowRegister",
                [&](Works& works) { BeginMessages(held.world, rank, across, works); },
                [&](Works& works) {  // more than what is registered
                  const auto begin = [&] { Begin(held.world, rank, "sum", 0, 5'000'000, works); };
                  me == 2 ? AwaitNodes(rank, begin) : begin();
                });
  });
  held.world.Check();
}

TEST_CASE("a kernel of the program's that does not end holds up no error", "[gpu][nccl]") {
  GpuLayout layout = OverNccl(2);
  layout.choices.groups.timeout = std::chrono::milliseconds(300);
  GpuWorld world(layout);
  world.Run([&](GpuRank& rank) { ExpectSum(world, rank, "before", 100); });
  world.Run([&](GpuRank& rank) {
    if (rank.me().rank() == 0) rank.stream().Hold();
    const Status end = FailingSum(rank);
    world.Expect(end.code() == Code::kUnavailable, end.message());
    const bool said = end.message().find("or has waited for its input, for 0.3 s") !=
                      std::string::npos;
    world.Expect(said, end.message());
    rank.stream().Release();
  });
  world.world.reset();
  world.Check();
}

TEST_CASE("a process set may be removed while its tensors are on their way", "[gpu][nccl]") {
  GpuWorld world(OverNccl(3));
  world.Run([&](GpuRank& rank) {
    for (int life = 0; life < 50; ++life) {
      const int set = rank.me().AddProcessSet({0, 1}).value();
      std::vector<std::shared_ptr<Work>> works;
      std::vector<std::byte*> tensors;
      for (int i = 0; i < 3 && rank.me().rank() < 2; ++i) {
        tensors.push_back(rank.Put(Counting(1, 8)));
        Request request = GpuRank::Of("s" + std::to_string(i), "sum", DataType::kFloat32, {8});
        request.process_set = set;
        works.push_back(rank.Submit(request, tensors.back(), tensors.back()).value());
        // Connected; the others are left to themselves.
        if (i == 0) world.Expect(rank.Synchronize(*works[0]).ok(), "the first");
      }
      world.Expect(rank.me().RemoveProcessSet(set).ok(), "removed");
      for (size_t i = 0; i < works.size(); ++i) {
        world.Expect(rank.Synchronize(*works[i]).ok(), "synchronized");
        world.Expect(test::Decode(DataType::kFloat32, rank.Get(tensors[i], 8))[1] == 4, "the sum");
      }
    }
  });
  for (const int rank : {0, 1}) CHECK(world.nccl->times(rank, "CommInitRankConfig") == 50);
  world.world.reset();
  for (const int rank : {0, 1}) CHECK(world.nccl->times(rank, "CommDestroy") == 50);
  CHECK(world.nccl->communicators() == 0);
  world.Check();
}

// One that is being left cannot be aborted.
TEST_CASE("the communicator of a removed set is left when the GPU has done its sums",
          "[gpu][nccl]") {
  GpuLayout layout = OverNccl(3);
  layout.choices.groups.timeout = std::chrono::milliseconds(300);
  GpuWorld world(layout);
  std::barrier together(3);
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank(), set = rank.me().AddProcessSet({0, 1}).value();
    const auto sum = [&] {
      std::byte* const tensor = rank.Put(Counting(1, 8));
      Request request = GpuRank::Of("s", "sum", DataType::kFloat32, {8});
      request.process_set = set;
      const auto work = rank.Submit(request, tensor, tensor).value();
      world.Expect(rank.me().Wait(*work).ok(), "enqueued");
    };
    if (me < 2) sum();
    together.arrive_and_wait();
    if (me == 1) world.nccl->Answer(1, "AllReduce", kNcclSuccess, 1'000'000);  // it never comes
    if (me < 2) sum();
    world.Expect(rank.me().RemoveProcessSet(set).ok(), "removed");
    const Status end = FailingSum(rank);
    world.Expect(end.code() == Code::kUnavailable, end.message());
  });
  world.world.reset();
  CHECK(world.nccl->times(0, "CommFinalize") == 0);
  world.Check();
}

// Rank 1's GPU is at a collective of one set, behind which one of the other waits: for ranks that
// do not come, both.
TEST_CASE("all communicators of a job that has failed are aborted at once", "[gpu][nccl]") {
  GpuWorld world(OverNccl(3));
  const std::vector<std::vector<int>> members = {{0, 1}, {1, 2}};
  std::barrier together(3);
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    std::vector<int> sets;
    for (const auto& ranks : members) sets.push_back(rank.me().AddProcessSet(ranks).value());
    const auto sum = [&](size_t set) {
      if (me != members[set][0] && me != members[set][1]) return;
      std::byte* const tensor = rank.Put(Counting(1, 8));
      Request request = GpuRank::Of("s", "sum", DataType::kFloat32, {8});
      request.process_set = sets[set];
      const auto work = rank.Submit(request, tensor, tensor).value();
      world.Expect(rank.me().Wait(*work).ok(), "enqueued");
    };
    sum(0);
    sum(1);
    together.arrive_and_wait();  // all are connected
    if (me != 1) world.nccl->Answer(me, "AllReduce", kNcclSuccess, 1'000'000);
    sum(0);
    sum(1);
    together.arrive_and_wait();  // all is enqueued
    if (me == 0) {
      world.nccl->AbortsWait();
      world.nccl->SetState(0, kNcclRemoteError);
    }
    const Status end = FailingSum(rank);
    world.Expect(end.code() == Code::kUnavailable, end.message());
  });
  world.world.reset();
  CHECK(world.nccl->communicators() == 0);
  world.Check();
}

TEST_CASE("the members of a process set part when it is removed, and hold up nobody",
          "[gpu][nccl]") {
  GpuWorld world(OverNccl(3));
  const auto farewells = [&](int rank) { return world.nccl->times(rank, "CommFinalize"); };
  world.Run([&](GpuRank& rank) {
    const int me = rank.me().rank();
    ExpectSum(world, rank, "of all", 100);
    for (size_t life = 1; life <= 4; ++life) {
      const int set = rank.me().AddProcessSet({0, 1}).value();
      if (me < 2) {
        std::byte* const tensor = rank.Put(Counting(1, 8));
        Request request = GpuRank::Of("s", "sum", DataType::kFloat32, {8});
        request.process_set = set;
        const auto work = rank.Submit(request, tensor, tensor).value();
        world.Expect(rank.Synchronize(*work).ok(), "synchronized");
        world.Expect(test::Decode(DataType::kFloat32, rank.Get(tensor, 8))[1] == 4, "the sum");
      }
      if (life == 2) world.nccl->Hold(me, "CommFinalize");
      world.Expect(rank.me().RemoveProcessSet(set).ok(), "removed");
      while (me < 2 && farewells(me) < life) std::this_thread::yield();
      ExpectSum(world, rank, "meanwhile", 100);
      if (life == 3) world.nccl->Recover();
    }
    ExpectSum(world, rank, "at last", 100);
  });
  world.world.reset();
  for (const int rank : {0, 1, 2}) {
    INFO("rank " << rank);
    CHECK(world.nccl->times(rank, "CommAbort") == 0);
    CHECK(world.nccl->times(rank, "CommDestroy") == (rank < 2 ? 5 : 1));
  }
  CHECK(world.nccl->communicators() == 0);
  world.Check();
}

TEST_CASE("ranks that do not meet in NCCL end the job", "[gpu][nccl]") {
  GpuLayout layout = OverNccl(2);
  layout.choices.groups.timeout = std::chrono::milliseconds(300);
  GpuWorld world(layout);
  for (const int rank : {0, 1}) world.nccl->SetState(rank, kNcclInProgress);
  std::vector<Status> ends(2);
  world.Run([&](GpuRank& rank) { ends[static_cast<size_t>(rank.me().rank())] = FailingSum(rank); });
  const std::string words = "NCCL did not bring 2 ranks together within 0.3 s";
  for (const Status& end : ends) CHECK(end.code() == Code::kUnavailable);
  CHECK((ends[0].message() + ends[1].message()).find(words) != std::string::npos);
  for (const int rank : {0, 1}) CHECK(world.nccl->times(rank, "CommAbort") == 1);
  world.nccl->Recover();
  world.Check();
}

// Buckets of sums that become longer, and rounds of gossip between.
void SumsAndMeans(GpuWorld& world) {
  world.Run([&](GpuRank& rank) {
    for (int64_t count = 1000; count < 100'000; count *= 5) {
      std::vector<std::byte*> tensors;  // share a bucket
      while (tensors.size() < 3) tensors.push_back(rank.Put(Counting(1, count)));
      const auto sums =
          rank.SubmitTogether("s" + std::to_string(count), "sum", tensors, count).value();
      world.Expect(rank.Synchronize(*sums).ok(), "synchronized");
      for (const std::byte* tensor : tensors) {
        const Values sum = test::Decode(DataType::kFloat32, rank.Get(tensor, count * 4));
        world.Expect(sum[1] == 2 * world.size(), "the sum");
      }
      const int me = rank.me().rank(), size = world.size();
      std::byte* const heard = rank.Put(Counting(me, count));  // by different numbers of peers
      const Request star = GpuRank::Of("h" + std::to_string(count), "gossip:graph=star",
                                       DataType::kFloat32, {count});
      const auto hub = rank.Submit(star, heard, heard).value();
      world.Expect(rank.Synchronize(*hub).ok(), "mixed with the hub");
      const std::string op = "gossip:graph=ring";
      std::byte* const tensor = rank.Put(Counting(me, count));
      const auto mixed =
          rank.Submit(GpuRank::Of("g" + std::to_string(count), op, DataType::kFloat32, {count}),
                      tensor, tensor)
              .value();
      world.Expect(rank.Synchronize(*mixed).ok(), "mixed");
      const Values mean = test::Decode(DataType::kFloat32, rank.Get(tensor, count * 4));
      const int before = (me + size - 1) % size, after = (me + 1) % size;
      const double wanted = size == 2 ? 0.5 : (before + me + after) / 3.0;
      world.Expect(std::fabs(mean[0] - wanted) < 1e-6, "the mean");
    }
  });
}

TEST_CASE("what buckets are packed into is registered with NCCL, on all ranks or on none",
          "[gpu][nccl]") {
  constexpr MemoryRegistration kNone = MemoryRegistration::kNone, kEach = MemoryRegistration::kEach,
                         kTogether = MemoryRegistration::kTogether;
  // What rank 0 wants, what the others want, and what it comes to.
  const std::vector<std::array<MemoryRegistration, 3>> cases = {
      {kNone, kNone, kNone},     {kEach, kNone, kNone},     {kEach, kEach, kEach},
      {kTogether, kNone, kNone}, {kTogether, kEach, kEach}, {kTogether, kTogether, kTogether}};
  for (const auto& [first, others, agreed] : cases) {
    for (const int local_size : {0, 2}) {
      INFO("rank 0 wants " << static_cast<int>(first) << ", the others "
                           << static_cast<int>(others) << ", " << local_size << " ranks a node");
      const int size = local_size == 0 ? 2 : 4;
      GpuLayout layout = OverNccl(size, local_size);
      layout.choose = [&](int rank, GpuChoices& choices) {
        choices.groups.registration = rank == 0 ? first : others;
      };
      // A sixteenth of that, and that: two blocks.
      layout.configure_rank = [](int rank, Config& config) {  // rank 0's is what counts
        config.fusion_bytes = rank == 0 ? 256 << 10 : 100 << 10;
      };
      GpuWorld world(layout);
      SumsAndMeans(world);
      // Between nodes it goes through a block, too: larger than the threshold.
      world.Run([&](GpuRank& rank) { ExpectSum(world, rank, "large", 100'000); });
      for (int rank = 0; rank < size; ++rank) {
        const size_t blocks = world.nccl->times(rank, "CommRegister");
        CHECK((blocks > 1) == (agreed == kEach));
        // Older ones were given back, when the device was done with them.
        CHECK((world.nccl->times(rank, "CommDeregister") > 0) == (agreed == kEach));
        const size_t windows = world.nccl->times(rank, "CommWindowRegister");
        CHECK(windows == (agreed != kTogether ? 0 : local_size == 0 ? 2 : 3));
        CHECK(world.nccl->times(rank, "MemAlloc") >= blocks + windows);
      }
      world.world.reset();  // memory goes after the communicators
      while (world.nccl->communicators() != 0) std::this_thread::yield();
      world.Check();
    }
  }
}

TEST_CASE("sets that come and go register memory that no other one has", "[gpu][nccl]") {
  for (const bool windows : {true, false}) {
    GpuLayout layout = OverNccl(3);
    layout.choices.groups.registration = MemoryRegistration::kTogether;
    GpuWorld world(layout);
    if (!windows) world.nccl->MakesNoWindows();
    world.Run([&](GpuRank& rank) {
      for (int life = 0; life < 10; ++life) {
        const int set = rank.me().AddProcessSet({0, 1}).value();
        for (const int process_set : {set, 0}) {
          const bool member = process_set == 0 || rank.me().rank() < 2;
          if (!member) continue;
          const std::vector<std::byte*> tensors = {rank.Put(Counting(1, 8)),
                                                   rank.Put(Counting(1, 8))};
          const auto sums = rank.SubmitTogether("s" + std::to_string(process_set), "sum", tensors,
                                                {8, 8}, DataType::kFloat32, process_set);
          world.Expect(sums.ok() && rank.Synchronize(*sums.value()).ok(), "synchronized");
          const double wanted = process_set == 0 ? 6 : 4;
          for (const std::byte* tensor : tensors) {
            world.Expect(test::Decode(DataType::kFloat32, rank.Get(tensor, 8))[1] == wanted,
                         "the sum");
          }
        }
        world.Expect(rank.me().RemoveProcessSet(set).ok(), "removed");
      }
    });
    for (const int rank : {0, 1}) CHECK(world.nccl->times(rank, "CommWindowRegister") == 11);
    CHECK(world.nccl->times(0, "CommRegister") == (windows ? 0 : 11));
    world.world.reset();
    while (world.nccl->communicators() != 0) std::this_thread::yield();
    world.Check();
  }
}

TEST_CASE("a rank that cannot register memory with all the others ends the job", "[gpu][nccl]") {
  GpuLayout layout = OverNccl(2);
  layout.choices.groups.registration = MemoryRegistration::kTogether;
  layout.choices.groups.timeout = std::chrono::milliseconds(300);
  GpuWorld world(layout);
  world.nccl->Answer(1, "CommWindowRegister", kNcclSystemError);
  std::vector<Status> ends(2);
  world.Run([&](GpuRank& rank) {
    const std::vector<std::byte*> tensors = {rank.Put(Counting(1, 8)), rank.Put(Counting(1, 8))};
    const auto sums = rank.SubmitTogether("s", "sum", tensors, 8).value();
    ends[static_cast<size_t>(rank.me().rank())] = rank.me().Wait(*sums);
  });
  for (const Status& end : ends) {
    INFO(end.message());
    CHECK(end.code() == Code::kUnavailable);
  }
  CHECK(ends[1].message().find("NCCL could not register memory with all ranks") !=
        std::string::npos);
  world.world.reset();
  world.Check();
}

}  // namespace
}  // namespace horon
