// Negotiators alone: one a rank, over the in-process transport, without runtime, executor or
// thread. The test steps them one by one, in orders of its own, and does the executor's part.
#include "runtime/core/negotiator.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "runtime/transport/shm.h"
#include "test/support/coordinator.h"
#include "test/support/faulty_transport.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Fault;
using test::FaultyTransport;
using test::Named;
using SharedWork = std::shared_ptr<Work>;
using Clock = Negotiator::Clock;

// A batch as it was given out.
struct Given {
  uint64_t number;  // of the locked schedule; 0: negotiated
  std::vector<std::string> keys;
  std::vector<ProcessSets::Ranks> ranks;  // by key
};
using Batches = std::vector<std::pair<uint64_t, std::vector<std::string>>>;

// One rank: a negotiator, what it needs, and what it has given out.
struct Side {
  Side(const Config& config, int rank, const Topology& topology, std::unique_ptr<Transport> way,
       int64_t batch_bytes)
      : sets(topology.size()),
        timeline(rank, true, counters),
        transport(std::move(way)),
        negotiator(config, rank, topology,
                   std::vector<Transport*>(static_cast<size_t>(topology.size()), transport.get()),
                   ops, registry, sets, callers, timeline, counters, batch_bytes) {}

  void Take(Batch batch) {
    if (batch.resume) TakeBack(*batch.resume);
    Given now{batch.entries.empty() ? 0 : batch.entries[0].locked.number, {}, {}};
    for (Entry& entry : batch.entries) {
      now.keys.push_back(entry.what->key);
      now.ranks.push_back(entry.ranks);
      running.push_back(std::move(entry));
    }
    started = std::max(started, now.number);
    if (!now.keys.empty()) given.push_back(std::move(now));
  }
  void TakeBack(uint64_t first) {
    Entries back;
    for (; !running.empty() && running.back().locked.number > first; running.pop_back())
      back.push_back(std::move(running.back()));
    while (!given.empty() && given.back().number > first) given.pop_back();
    started = first;
    taken_back += back.size();
    negotiator.TakeBack(std::move(back));
  }
  int64_t Count(const std::string& name) { return counters["negotiation.inproc." + name].value(); }

  Counters counters;
  OpTable ops;
  Registry registry{ops};
  ProcessSets sets;
  Callers callers;
  Timeline timeline;
  std::unique_ptr<Transport> transport;
  std::deque<Entry> running;
  std::vector<Given> given;
  uint64_t started = 0;  // of the locked schedule
  size_t taken_back = 0;
  Negotiator negotiator;  // last: its transfers are cancelled first
};

Config NeverLocked() {
  Config config;
  config.lock_schedule = false;
  return config;
}

class Sides {
 public:
  using Wrap = std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport>)>;
  // `local_size` 0: one node.
  explicit Sides(
      int size, const Config& config = NeverLocked(), int local_size = 0,
      const Wrap& wrap = [](int, std::unique_ptr<Transport> inner) { return inner; },
      int64_t batch_bytes = 0) {
    auto segment = SharedSegment::InProcess(SegmentShape::For(size, 0, 4096)).value();
    for (int rank = 0; rank < size; ++rank) all_.push_back(rank);
    const Topology topology =
        local_size > 0 ? Topology::Blocks(size, local_size) : Topology::OneNode(size);
    for (int rank : all_) {
      auto rings = std::make_unique<ShmTransport>(segment, all_, rank, "inproc");
      sides_.push_back(
          std::make_unique<Side>(config, rank, topology, wrap(rank, std::move(rings)),
                                 batch_bytes));
    }
  }

  const std::vector<int>& all() const { return all_; }
  Side& operator[](int rank) { return *sides_[static_cast<size_t>(rank)]; }

  SharedWork Submit(int rank, Request request) {
    Side& side = (*this)[rank];
    auto work = std::make_shared<Work>(1);
    Entry entry;
    entry.what = side.registry.Of(std::move(request)).value();
    REQUIRE(entry.what->Claim());
    entry.promise = Promise(work, 0, entry.what);
    side.negotiator.Add({&entry, 1});
    return work;
  }
  // On all ranks.
  std::vector<SharedWork> Submit(const Request& request) {
    std::vector<SharedWork> works;
    for (int rank : all_) works.push_back(Submit(rank, request));
    return works;
  }

  // Lets this rank do what it can do now. Whether anything moved.
  Result<bool> Step(int rank, bool awaited = false) {
    Side& side = (*this)[rank];
    HORON_ASSIGN(const bool progress, side.transport->Progress());
    HORON_ASSIGN(RecycledVector<Batch> batches, side.negotiator.Advance(awaited));
    for (Batch& batch : batches) side.Take(std::move(batch));
    return progress || side.negotiator.moved() || !batches.empty();
  }
  // These ranks only, in turn, until nothing moves any more.
  void Settle(const std::vector<int>& ranks) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank : ranks) {
        const Result<bool> stepped = Step(rank);
        INFO("rank " << rank << ": " << stepped.status().message());
        REQUIRE(stepped.ok());
        moved = moved || stepped.value();
      }
    }
  }
  void Settle() { Settle(all_); }

  // Finishes what all ranks have started, oldest first, at most `most` tensors.
  void Finish(int rank, size_t most = SIZE_MAX) {
    uint64_t by_all = UINT64_MAX;
    for (const auto& side : sides_) by_all = std::min(by_all, side->started);
    std::deque<Entry>& running = (*this)[rank].running;
    for (; most > 0 && !running.empty() && running.front().locked.number <= by_all; --most) {
      running.front().promise.Finish(Status::Ok());
      running.pop_front();
    }
  }
  // Once and to its end, on all ranks.
  std::vector<SharedWork> Run(const std::vector<Request>& requests) {
    std::vector<SharedWork> works;
    for (const Request& request : requests) {
      for (SharedWork& work : Submit(request)) works.push_back(std::move(work));
    }
    Settle();
    for (int rank : all_) Finish(rank);
    return works;
  }
  // A process set of these ranks; its number.
  int32_t AddSet(const std::vector<int64_t>& ranks) {
    Request request;
    request.name = "set";
    request.op = "process_set.add";
    request.splits = ranks;
    std::set<int64_t> numbers;
    for (const SharedWork& work : Run({request})) {
      REQUIRE(work->done());
      REQUIRE(work->status().message() == "");
      numbers.insert(work->outputs()[0].received_splits[0]);
    }
    REQUIRE(numbers.size() == 1);
    return static_cast<int32_t>(*numbers.begin());
  }
  // What rank a was given of the tensors that are b's, too.
  Batches Shared(int a, int b) {
    Batches shared;
    for (const Given& batch : (*this)[a].given) {
      std::vector<std::string> keys;
      for (size_t i = 0; i < batch.keys.size(); ++i) {
        const std::vector<int>& ranks = *batch.ranks[i];
        if (std::binary_search(ranks.begin(), ranks.end(), b)) keys.push_back(batch.keys[i]);
      }
      if (!keys.empty()) shared.emplace_back(batch.number, std::move(keys));
    }
    return shared;
  }
  void RequireAlike() {
    for (int a : all_) {
      for (int b : all_) REQUIRE(Shared(a, b) == Shared(b, a));
    }
  }

 private:
  std::vector<int> all_;
  std::vector<std::unique_ptr<Side>> sides_;
};

Request Of(int32_t set, const std::string& name) {
  Request request = Named(name);
  request.process_set = set;
  return request;
}

TEST_CASE("negotiator: a tensor is given out when all ranks have submitted it, not before") {
  for (int size = 1; size <= 4; ++size) {
    Sides sides(size);
    for (int last = 0; last < size; ++last) {
      for (int rank : sides.all()) CHECK(sides[rank].given.empty());
      sides.Submit(last, Named("w"));
      sides.Settle();
    }
    for (int rank : sides.all()) {
      REQUIRE(sides[rank].running.size() == 1);
      CHECK(sides[rank].running[0].what->key == "0/w");
      CHECK(sides[rank].running[0].ranks->size() == static_cast<size_t>(size));
    }
  }
}

TEST_CASE("negotiator: what was agreed before travels as a bit") {
  for (int size = 2; size <= 4; ++size) {
    Sides sides(size);
    const auto counts = [&](int rank) {
      Side& side = sides[rank];
      return std::vector<int64_t>{side.Count("requests"), side.Count("bits"),
                                  side.Count("responses"), side.Count("cached_responses")};
    };
    sides.Run({Named("w")});
    for (int rank : sides.all()) CHECK(counts(rank) == std::vector<int64_t>{1, 0, 1, 0});
    sides.Run({Named("w")});
    sides.Run({Named("w")});
    for (int rank : sides.all()) CHECK(counts(rank) == std::vector<int64_t>{1, 2, 1, 2});
    sides.Run({Named("w", 5)});  // of another shape
    for (int rank : sides.all()) CHECK(counts(rank) == std::vector<int64_t>{2, 2, 2, 2});
  }
}

TEST_CASE("negotiator: ranks that disagree all hear of both sides, and go on") {
  Sides sides(3);
  std::vector<SharedWork> works;
  for (int rank : sides.all()) works.push_back(sides.Submit(rank, Named("w", rank == 1 ? 5 : 4)));
  sides.Settle();
  for (const SharedWork& work : works) {
    REQUIRE(work->done());
    CHECK(work->status().code() == Code::kInvalidArgument);
    CHECK(work->status().message() ==
          "Mismatched ALLREDUCE tensor shapes for tensor 'w': ranks [0, 2] have shape [4], rank "
          "[1] has shape [5].");
  }
  for (const SharedWork& work : sides.Run({Named("w")})) {
    REQUIRE(work->done());
    CHECK(work->status().ok());
  }
  for (int rank : sides.all()) CHECK(sides[rank].given.size() == 1);
}

TEST_CASE("negotiator: ranks must be in the same round of a tensor, and a new one is a request") {
  Sides sides(3);
  Request request = Named("w");
  request.op = "dissemination";
  std::vector<SharedWork> works;
  for (int rank : sides.all()) {
    request.round = rank == 2 ? 7 : 6;
    works.push_back(sides.Submit(rank, request));
  }
  sides.Settle();
  for (const SharedWork& work : works) {
    REQUIRE(work->done());
    CHECK(work->status().message() ==
          "Mismatched rounds for tensor 'w': ranks [0, 1] have round 6, rank [2] has round 7.");
  }
  for (int64_t round = 7; round < 10; ++round) {
    request.round = round;
    sides.Submit(request);
    sides.Settle();
    for (int rank : sides.all()) {
      REQUIRE(sides[rank].running.size() == 1);
      CHECK(sides[rank].running[0].request().round == round);
      CHECK(sides[rank].Count("requests") == round - 5);
      sides.Finish(rank);
    }
  }
}

TEST_CASE("negotiator: all process sets are ordered by one rank, member or not") {
  Sides sides(4);
  const int32_t low = sides.AddSet({0, 1, 2}), high = sides.AddSet({1, 2, 3});
  CHECK(low != high);
  // Both have both sets, and submit and hear in opposite orders.
  sides.Submit(1, Of(low, "a"));
  sides.Submit(1, Of(high, "b"));
  sides.Submit(2, Of(high, "b"));
  sides.Settle({1, 0});
  sides.Submit(2, Of(low, "a"));
  sides.Submit(3, Of(high, "b"));
  sides.Settle({3, 2, 0});
  sides.Submit(0, Of(low, "a"));
  sides.Settle();
  const std::string a = KeyOf(low, "a"), b = KeyOf(high, "b");
  CHECK(sides.Shared(0, 0) == Batches{{0, {a}}});
  CHECK(sides.Shared(1, 1) == Batches{{0, {b}}, {0, {a}}});
  CHECK(sides.Shared(2, 2) == Batches{{0, {b}}, {0, {a}}});
  CHECK(sides.Shared(3, 3) == Batches{{0, {b}}});
}

TEST_CASE("negotiator: nothing is given out before the others can hear of it") {
  std::atomic<bool> armed{false};
  Fault held;
  held.kind = Fault::Kind::kDelay;
  held.armed = &armed;
  for (const bool fail : {false, true}) {
    armed = false;
    Sides sides(2, NeverLocked(), 0, [&](int rank, std::unique_ptr<Transport> inner) {
      if (rank != 0) return inner;
      return std::unique_ptr<Transport>(std::make_unique<FaultyTransport>(std::move(inner), held));
    });
    sides.Settle();  // rank 0 listens
    const std::vector<SharedWork> works = sides.Submit(Named("w"));
    sides.Settle({1});
    armed = true;
    REQUIRE(sides.Step(0).ok());
    CHECK(sides[0].Count("responses") == 1);  // it is decided, and on its way
    CHECK_FALSE(sides[0].negotiator.idle());
    CHECK(sides[0].given.empty());
    if (fail) {
      sides[0].negotiator.FailAll(Status::Unavailable("rank 1 died"));
      REQUIRE(works[0]->done());
      CHECK(works[0]->status().message() == "rank 1 died");
      continue;
    }
    for (int look = 1; look < held.delay_looks; ++look) {
      CHECK(sides[0].given.empty());
      REQUIRE(sides.Step(0).ok());
    }
    REQUIRE(sides.Step(0).ok());
    sides.Settle();
    CHECK(sides.Shared(0, 1) == Batches{{0, {"0/w"}}});
    CHECK(sides[0].negotiator.idle());
  }
}

// --- a message that is lost --------------------------------------------------------------------

// The rank's `at`-th post from when `armed` is true gets lost.
Sides::Wrap Losing(int loser, int at, const std::atomic<bool>& armed) {
  return [loser, at, &armed](int rank, std::unique_ptr<Transport> inner) {
    if (rank != loser) return inner;
    Fault fault;
    fault.kind = Fault::Kind::kDrop;
    fault.at = at;
    fault.armed = &armed;
    return std::unique_ptr<Transport>(std::make_unique<FaultyTransport>(std::move(inner), fault));
  };
}

TEST_CASE("negotiator: reports and decisions are numbered, so that a lost one is noticed") {
  std::atomic<bool> armed{true};
  Sides reports(2, NeverLocked(), 0, Losing(1, 1, armed));
  reports.Submit(1, Named("a"));
  reports.Settle();
  reports.Submit(1, Named("b"));
  REQUIRE(reports.Step(1).ok());
  const Status lost_report = reports.Step(0).status();
  CHECK(lost_report.code() == Code::kInternal);
  CHECK(lost_report.message() ==
        "report 1 of rank 1 was lost on the way: number 2 came in its place");

  armed = false;
  Sides decisions(2, NeverLocked(), 0, Losing(0, 2, armed));
  decisions.Settle();  // rank 0 listens
  decisions.Submit(Named("a"));
  decisions.Settle({1});
  armed = true;  // its first post listens again
  decisions.Settle();
  CHECK(decisions[0].given.size() == 1);
  CHECK(decisions[1].given.empty());
  decisions.Submit(Named("b"));
  decisions.Settle({1});
  REQUIRE(decisions.Step(0).ok());
  const Status lost_decision = decisions.Step(1).status();
  CHECK(lost_decision.code() == Code::kInternal);
  CHECK(lost_decision.message() == "decision 2 came after 0");
}

// --- leaving -----------------------------------------------------------------------------------

TEST_CASE("negotiator: a rank has left when rank 0 has told it so") {
  Sides sides(3);
  const int32_t pair = sides.AddSet({0, 1});
  const SharedWork first = sides.Submit(0, Named("w")), second = sides.Submit(1, Named("w"));
  sides[2].negotiator.Leave();
  sides.Settle({2});
  CHECK_FALSE(sides[2].negotiator.left());
  sides.Settle({0, 1});
  CHECK_FALSE(sides[2].negotiator.left());
  sides.Settle();
  CHECK(sides[2].negotiator.left());
  for (const SharedWork& work : {first, second}) {
    REQUIRE(work->done());
    CHECK(work->status().code() == Code::kAborted);
    CHECK(work->status().message().find("tensor 'w' needs rank 2, which has left the job") == 0);
  }
  for (int rank : {0, 1}) {
    CHECK_FALSE(sides[rank].negotiator.left());
    CHECK_FALSE(sides[rank].negotiator.over());
    sides.Submit(rank, Of(pair, "w"));
  }
  sides.Settle();
  CHECK(sides.Shared(0, 1) == Batches{{0, {KeyOf(pair, "w")}}});
  CHECK(sides.Shared(1, 0) == Batches{{0, {KeyOf(pair, "w")}}});
}

TEST_CASE("negotiator: without rank 0 nothing can be agreed any more") {
  Sides sides(3);
  const SharedWork pending = sides.Submit(1, Named("w"));
  sides.Settle();
  sides[0].negotiator.Leave();
  sides.Settle();
  CHECK(sides[0].negotiator.left());
  const std::string reason = "rank 0 has left the job (it called shutdown or its program ended)";
  for (int rank : {1, 2}) {
    CHECK(sides[rank].negotiator.over());
    CHECK(sides[rank].negotiator.over_reason() == reason);
    CHECK(sides[rank].negotiator.left());
  }
  const SharedWork late = sides.Submit(2, Named("w"));
  REQUIRE(pending->done());
  REQUIRE(late->done());
  CHECK(pending->status().code() == Code::kAborted);
  CHECK(late->status().message() == reason);
}

TEST_CASE("negotiator: who left first is named, not rank 0 that left because of it") {
  Sides sides(4, NeverLocked(), 2);
  sides[1].negotiator.Leave();
  sides.Settle();
  sides[0].negotiator.Leave();
  sides.Settle();
  const SharedWork late = sides.Submit(3, Named("w"));
  REQUIRE(late->done());
  CHECK(late->status().code() == Code::kAborted);
  CHECK(late->status().message() ==
        "rank 1 has left the job, and rank 0 after it (they called shutdown or their programs "
        "ended; a rank with fewer steps than the others has to call join first)");
}

TEST_CASE("negotiator: the leader of a node that leaves is named, or who left before it") {
  for (const int first : {1, 2}) {
    Sides sides(4, NeverLocked(), 2);
    for (const int rank : {first, 2}) {
      sides[rank].negotiator.Leave();
      sides.Settle();
    }
    const SharedWork late = sides.Submit(3, Named("w"));
    REQUIRE(late->done());
    const std::string leader = "the first rank of this node, which negotiates for it, ";
    const std::string said = late->status().message();
    INFO(said);
    CHECK(said.starts_with(first == 2 ? leader + "has left the job (it called"
                                      : "rank 1 has left the job, and " + leader + "after it ("));
  }
}

TEST_CASE("negotiator: ranks leave in any order") {
  for (const int local_size : {0, 1, 2}) {
    std::vector<int> order{0, 1, 2, 3};
    do {
      for (const size_t at_once : {size_t{1}, size_t{2}, size_t{4}}) {
        INFO(local_size << " a node, " << at_once << " at once, first " << order[0] << ", then "
                        << order[1] << ", then " << order[2]);
        Sides sides(4, NeverLocked(), local_size);
        const std::vector<SharedWork> works = sides.Run({Named("w")});
        const SharedWork alone = sides.Submit(order[3], Named("w"));
        for (size_t i = 0; i < order.size(); ++i) {
          sides[order[i]].negotiator.Leave();
          if ((i + 1) % at_once == 0) sides.Settle({order[3], order[2], order[1], order[0]});
        }
        for (const SharedWork& work : works) REQUIRE(work->status().ok());
        for (int rank : sides.all()) REQUIRE(sides[rank].negotiator.left());
        REQUIRE(alone->done());
        REQUIRE(alone->status().code() == Code::kAborted);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// --- stalls ------------------------------------------------------------------------------------

// Looks every 100 ms of a made-up clock until a look fails; the time from the first one on.
std::pair<milliseconds, Status> LookUntil(Sides& sides, int rank, milliseconds end,
                                          const std::vector<int>& stepped) {
  const Clock::time_point start = Clock::now();
  milliseconds time{0};
  Status status;
  for (; status.ok() && time <= end; time += milliseconds{100}) {
    status = sides[rank].negotiator.LookForStalls(start + time, {}, nullptr);
    sides.Settle(stepped);
  }
  return {time - milliseconds{100}, status};
}

TEST_CASE("negotiator: rank 0 is given up when it does not answer for long") {
  Sides sides(2);
  sides.Submit(1, Named("w"));
  const auto [time, status] = LookUntil(sides, 1, seconds{1000}, {1});
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.message().find("rank 0 has not answered for 30 s") == 0);
  CHECK(sides[1].negotiator.lost() == 0);
  // Asked first after half a second, and looked at every 10 s at most.
  CHECK(time >= milliseconds{30500});
  CHECK(time <= milliseconds{40500});
}

TEST_CASE("negotiator: a rank that answers may take its time") {
  Sides sides(2);
  const SharedWork work = sides.Submit(1, Named("w"));
  const auto [time, status] = LookUntil(sides, 1, seconds{1000}, {0, 1});
  CHECK(status.ok());
  CHECK(time == seconds{1000});
  CHECK_FALSE(work->done());
  sides.Submit(0, Named("w"));
  sides.Settle();
  CHECK(sides.Shared(1, 0) == Batches{{0, {"0/w"}}});
}

TEST_CASE("negotiator: nobody asks where nothing waits") {
  Sides sides(2);
  sides.Run({Named("w")});
  const int64_t before = sides[1].Count("messages");
  CHECK(LookUntil(sides, 1, seconds{100}, {0, 1}).second.ok());
  CHECK(sides[1].Count("messages") == before);
  CHECK(sides[1].negotiator.next_look(false) == Clock::time_point::max());
}

// Rank 0 judges by the real clock: here a rank is silent when it has not answered for 50 ms.
TEST_CASE("negotiator: a rank that never comes is named to all others") {
  Config config = NeverLocked();
  config.stall_silence = milliseconds{50};
  Sides sides(3, config);
  sides.Submit(0, Named("w"));
  sides.Submit(1, Named("w"));
  const Clock::time_point start = Clock::now();
  Status status;
  for (milliseconds time{0}; status.ok() && Clock::now() < start + seconds{60};
       time += milliseconds{500}) {
    REQUIRE(sides[0].negotiator.LookForStalls(start + time, {}, nullptr).ok());
    REQUIRE(sides.Step(1).ok());
    status = sides.Step(0).status();
  }
  for (int rank : {0, 1}) {
    if (rank == 1) status = sides.Step(1).status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().find("rank 2 has not answered for ") == 0);
    CHECK(sides[rank].negotiator.lost() == 2);
  }
}

TEST_CASE("negotiator: a tensor that a rank never submits is given up after the time set") {
  Config config = NeverLocked();
  config.stall_shutdown = milliseconds{1};
  Sides sides(3, config);
  const SharedWork first = sides.Submit(0, Named("w")), second = sides.Submit(2, Named("w"));
  const Clock::time_point start = Clock::now();
  for (milliseconds time{0}; !first->done() && Clock::now() < start + seconds{60};
       time += milliseconds{500}) {
    REQUIRE(sides[2].negotiator.LookForStalls(start + time, {}, nullptr).ok());
    sides.Settle();
  }
  for (const SharedWork& work : {first, second}) {
    REQUIRE(work->done());
    CHECK(work->status().code() == Code::kAborted);
    CHECK(work->status().message().find("tensor 'w': submitted by ranks 0, 2 ") == 0);
    CHECK(work->status().message().find("missing: rank 1 ") != std::string::npos);
  }
  const SharedWork late = sides.Submit(1, Named("w"));  // hears the same
  sides.Settle();
  REQUIRE(late->done());
  CHECK(late->status().message() == first->status().message());
}

// --- the locked schedule -----------------------------------------------------------------------

const std::vector<Request> kStep = {Named("a"), Named("b"), Named("c")};

// Runs steps until all ranks have locked them.
void Lock(Sides& sides) {
  for (int step = 0; step < 10 && !sides[0].negotiator.locked(); ++step) sides.Run(kStep);
  for (int rank : sides.all()) REQUIRE(sides[rank].negotiator.locked());
}

TEST_CASE("negotiator: a locked step is given out without a message") {
  for (const int local_size : {0, 1, 2}) {
    Sides sides(4, Config(), local_size);
    Lock(sides);
    const int64_t before = sides[0].Count("messages") + sides[3].Count("messages");
    for (const SharedWork& work : sides.Run(kStep)) {
      REQUIRE(work->done());
      CHECK(work->status().ok());
    }
    CHECK(sides[0].Count("messages") + sides[3].Count("messages") == before);
    sides.RequireAlike();
    CHECK(sides[0].given.back().number > 0);
  }
}

TEST_CASE("negotiator: what a rank has started alone is taken back, and agreed again") {
  Sides sides(2, Config());
  Lock(sides);
  std::vector<SharedWork> works;
  for (const Request& request : kStep) works.push_back(sides.Submit(0, request));
  sides.Settle({0});
  CHECK(sides[0].started > sides[1].started);
  works.push_back(sides.Submit(1, Named("other")));
  sides.Settle();
  CHECK(sides[0].taken_back == kStep.size());
  CHECK(sides[0].running.empty());
  for (int rank : sides.all()) CHECK_FALSE(sides[rank].negotiator.locked());
  works.push_back(sides.Submit(0, Named("other")));
  for (const Request& request : kStep) works.push_back(sides.Submit(1, request));
  sides.Settle();
  for (int rank : sides.all()) sides.Finish(rank);
  for (const SharedWork& work : works) {
    REQUIRE(work->done());
    CHECK(work->status().ok());
  }
  sides.RequireAlike();
}

// A rank that is ahead, and has reported a name that the others lock in another shape.
TEST_CASE("negotiator: what was reported before its name was locked is not forgotten") {
  const auto run = [](Sides& sides) {
    for (const Request& request : kStep) sides.Run({request});
  };
  int steps = 0;
  for (Sides sides(2, Config()); !sides[0].negotiator.locked(); ++steps) {
    REQUIRE(steps < 10);
    run(sides);
  }
  Sides sides(2, Config());
  for (int step = 1; step < steps; ++step) run(sides);
  sides.Run({kStep[0]});
  sides.Run({kStep[1]});
  const SharedWork ahead = sides.Submit(1, Named("a", 5));
  sides.Settle();
  CHECK_FALSE(sides[0].negotiator.locked());
  sides.Run({kStep[2]});
  CHECK(sides[0].counters["schedule.locks"].value() == 1);
  const SharedWork behind = sides.Submit(0, Named("a", 5));
  sides.Settle();
  for (int rank : sides.all()) sides.Finish(rank);
  for (const SharedWork& work : {ahead, behind}) {
    REQUIRE(work->done());
    CHECK(work->status().ok());
  }
  sides.RequireAlike();
}

// --- any order ---------------------------------------------------------------------------------

// A program of several rounds. In each, every rank submits the same tensors in another order; now
// and then one more tensor, one of another shape, or one that a rank has in another shape.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {
    const int size = 1 + Below(4), local_size = Below(3);
    Config config;
    config.lock_schedule = Below(4) > 0;
    config.cache_capacity = std::vector<int64_t>{0, 2, 100, 100}[Pick(4)];
    const int64_t batch_bytes = std::vector<int64_t>{0, 20, int64_t{1} << 40}[Pick(3)];
    sides_ = std::make_unique<Sides>(
        size, config, local_size,
        [](int, std::unique_ptr<Transport> inner) { return inner; }, batch_bytes);
    std::vector<int32_t> sets{0};
    if (size > 2 && Below(3) == 0) {
      sets.push_back(sides_->AddSet({0, 1}));
      sets.push_back(sides_->AddSet({1, 2}));
    }
    todo_.resize(static_cast<size_t>(size));
    results_.resize(static_cast<size_t>(size));
    for (int round = 0; round < 12; ++round) AddRound(round, sets);
  }

  // Whether all came to an end.
  bool Run() {
    for (int turn = 0; turn < 1'000'000 && !Done(); ++turn) {
      const int rank = Below(static_cast<int>(todo_.size()));
      switch (Below(3)) {
        case 0:
          Submit(rank);
          break;
        case 1:
          REQUIRE(sides_->Step(rank, Below(2) == 0).ok());
          break;
        default:
          sides_->Finish(rank, static_cast<size_t>(1 + Below(3)));
      }
    }
    return Done();
  }

  Sides& sides() { return *sides_; }
  // By round and key: what each rank that has the tensor was told. Once done.
  std::map<std::pair<int, std::string>, std::vector<std::string>> Told() {
    std::map<std::pair<int, std::string>, std::vector<std::string>> told;
    for (const auto& results : results_) {
      for (const auto& [what, work] : results) told[what].push_back(work->status().message());
    }
    return told;
  }
  size_t mismatched() const { return mismatched_.size(); }
  bool Mismatched(const std::pair<int, std::string>& what) const {
    return mismatched_.contains(what);
  }

 private:
  struct Planned {
    int round;
    Request request;
  };
  int Below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }
  size_t Pick(int end) { return static_cast<size_t>(Below(end)); }

  void AddRound(int round, const std::vector<int32_t>& sets) {
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i)
      requests.push_back(Of(sets[static_cast<size_t>(i) % sets.size()], "t" + std::to_string(i)));
    if (Below(6) == 0) requests.push_back(Of(0, "extra" + std::to_string(Below(3))));
    if (Below(8) == 0) requests[static_cast<size_t>(Below(5))].shape = {7};
    const bool wrong = Below(12) == 0 && todo_.size() > 1;
    for (int rank : sides_->all()) {
      const auto first = todo_[static_cast<size_t>(rank)].size();
      for (Request request : requests) {
        const std::vector<int> ranks = *(*sides_)[0].sets.Find(request.process_set);
        if (!std::binary_search(ranks.begin(), ranks.end(), rank)) continue;
        if (wrong && rank == 1 && request.name == "t0") {
          request.shape = {1, 1};
          mismatched_.insert({round, KeyOf(request.process_set, request.name)});
        }
        todo_[static_cast<size_t>(rank)].push_back({round, std::move(request)});
      }
      auto& mine = todo_[static_cast<size_t>(rank)];
      std::shuffle(mine.begin() + static_cast<std::ptrdiff_t>(first), mine.end(), random_);
    }
  }

  // The next tensor, if its name is free.
  void Submit(int rank) {
    auto& todo = todo_[static_cast<size_t>(rank)];
    if (todo.empty()) return;
    const Request& request = todo.front().request;
    const auto known = (*sides_)[rank].registry.Find(request.process_set, request.name);
    if (known && known->pending()) return;
    results_[static_cast<size_t>(rank)].emplace_back(
        std::pair(todo.front().round, KeyOf(request.process_set, request.name)),
        sides_->Submit(rank, request));
    todo.pop_front();
  }

  bool Done() const {
    return std::all_of(todo_.begin(), todo_.end(), [](const auto& todo) { return todo.empty(); }) &&
           std::all_of(results_.begin(), results_.end(), [](const auto& results) {
             return std::all_of(results.begin(), results.end(),
                                [](const auto& result) { return result.second->done(); });
           });
  }

  std::mt19937_64 random_;
  std::unique_ptr<Sides> sides_;
  std::vector<std::deque<Planned>> todo_;  // by rank
  std::vector<std::vector<std::pair<std::pair<int, std::string>, SharedWork>>> results_;
  std::set<std::pair<int, std::string>> mismatched_;
};

TEST_CASE("negotiator: all ranks get the same batches, in whatever order they submit and run") {
  int64_t locks = 0, locked = 0, bits = 0;
  size_t taken_back = 0, mismatched = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Chance chance(seed);
    REQUIRE(chance.Run());
    chance.sides().RequireAlike();
    for (const auto& [what, told] : chance.Told()) {
      INFO("round " << what.first << ", " << what.second);
      REQUIRE(std::set<std::string>(told.begin(), told.end()).size() == 1);
      const bool wrong = told[0].find("Mismatched ALLREDUCE tensor shapes") == 0;
      REQUIRE(wrong == chance.Mismatched(what));
      REQUIRE((wrong || told[0].empty()));
    }
    mismatched += chance.mismatched();
    for (int rank : chance.sides().all()) {
      Side& side = chance.sides()[rank];
      REQUIRE(side.negotiator.idle());
      locks += side.counters["schedule.locks"].value();
      locked += side.counters["schedule.tensors"].value();
      bits += side.Count("bits");
      taken_back += side.taken_back;
    }
  }
  // All ways were gone.
  CHECK(locks > 100);
  CHECK(locked > 1000);
  CHECK(bits > 1000);
  CHECK(taken_back > 10);
  CHECK(mismatched > 10);
}

}  // namespace
}  // namespace horon
