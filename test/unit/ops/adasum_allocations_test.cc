// What Adasum takes from the heap once its steps repeat: every operator new of this program is
// counted, on all threads, and those that the runtime itself is the reason of.
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <new>
#include <numeric>
#include <tuple>

#include "runtime/include/horon/horon.h"
#include "test/support/road.h"

namespace {

std::atomic<int64_t> news{0}, bytes_of_news{0}, largest_new{0}, news_inside{0};
thread_local bool outside = false;  // this thread is in the test's own code

void* CountedOrNull(std::size_t bytes) noexcept {
  news.fetch_add(1, std::memory_order_relaxed);
  if (!outside) news_inside.fetch_add(1, std::memory_order_relaxed);
  bytes_of_news.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  if (static_cast<int64_t>(bytes) > largest_new.load(std::memory_order_relaxed))
    largest_new.store(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* Counted(std::size_t bytes) {
  void* const memory = CountedOrNull(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes); }
void* operator new[](std::size_t bytes) { return Counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return CountedOrNull(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return CountedOrNull(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace horon {
namespace {

using test::Rank;
using test::Tensor;
using test::World;
using test::WorldOptions;

constexpr int kWarm = 8, kSteps = 16;

// How its steps differ from those that a locked schedule runs.
struct Way {
  const char* name = "locked";
  bool lock = true;      // HORON_LOCK_SCHEDULE
  bool own_set = false;  // one rank more than the process set has
  double prescale = 1.0;
};

// A rank's equal steps: `tensors` at once, in place.
class Steps {
 public:
  Steps(Rank& me, const std::string& op, int tensors, int64_t count, double prescale = 1.0,
        int set = 0)
      : me_(me),
        values_(static_cast<size_t>(tensors), std::vector<float>(static_cast<size_t>(count), 1)),
        works_(values_.size()) {
    for (size_t t = 0; t < values_.size(); ++t) {
      requests_.push_back(Tensor("t" + std::to_string(t), op, {count}));
      requests_.back().prescale = prescale;
      requests_.back().process_set = set;
    }
  }
  void Submit() {
    for (size_t t = 0; t < values_.size(); ++t)
      works_[t] = me_.Submit(requests_[t], values_[t].data(), values_[t].data()).value();
  }
  void Wait() {
    for (auto& work : works_) std::ignore = me_.Wait(*work);
  }

 private:
  Rank& me_;
  std::vector<std::vector<float>> values_;
  std::vector<Request> requests_;
  std::vector<std::shared_ptr<Work>> works_;
};

// Of a steady step, by rank: how many things of how many bytes; and the largest of all.
struct Taken {
  double things = 0, bytes = 0;
  int64_t largest = 0;
};

// In steps of so many tensors.
Taken TakenBy(int ranks, const std::string& op, int tensors, int64_t count) {
  Taken taken;
  World(ranks).Run([&](Rank& me) {
    Steps steps(me, op, tensors, count);
    int64_t things = 0, bytes = 0;
    for (int step = 0; step < kWarm + kSteps; ++step) {
      if (step == kWarm && me.rank() == 0) {
        things = news;
        bytes = bytes_of_news;
        largest_new = 0;
      }
      steps.Submit();
      steps.Wait();
    }
    if (me.rank() != 0) return;
    const double all = kSteps * ranks;
    taken = {static_cast<double>(news - things) / all,
             static_cast<double>(bytes_of_news - bytes) / all, largest_new};
  });
  return taken;
}

// Steps until the runtime has taken nothing from the heap for kSteps of them, on the background
// threads or on those that wait; the least that it took.
int64_t LeastInside(int ranks, WorldOptions options, const std::string& op, int tensors,
                    int64_t count, const Way& way = {}) {
  constexpr int kTries = 200;  // the schedule is left for a while when a thread is kept waiting
  std::atomic<int64_t> least{INT64_MAX};
  const int all = ranks + (way.own_set ? 1 : 0);
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::barrier together(all);
  World(all, std::move(options)).Run([&](Rank& me) {
    outside = true;
    const int set = way.own_set ? me.AddProcessSet(members).value() : 0;
    Steps steps(me, op, me.rank() < ranks ? tensors : 0, count, way.prescale, set);
    for (int i = 0; i < kTries && least > 0; ++i) {
      together.arrive_and_wait();
      const int64_t before = news_inside;
      together.arrive_and_wait();
      for (int step = 0; step < kSteps; ++step) {
        steps.Submit();
        outside = false;
        steps.Wait();
        outside = true;
      }
      together.arrive_and_wait();
      if (me.rank() == 0) least = std::min<int64_t>(least, news_inside - before);
      together.arrive_and_wait();
    }
  });
  return least;
}

TEST_CASE("in the steady state the runtime takes nothing from the heap for adasum", "[adasum]") {
  const std::string op =
      GENERATE("adasum", "adasum:algo=halving", "adasum:algo=doubling", "adasum:algo=tree",
               "adasum:algo=ring", "adasum:local=average", "adasum:local=sum");
  const auto [ranks, nodes] = GENERATE(std::pair{2, 1}, std::pair{4, 1}, std::pair{3, 1},
                                       std::pair{2, 2}, std::pair{4, 2}, std::pair{3, 2});
  const bool lend = GENERATE(false, true);
  WorldOptions options;
  options.local_size = (ranks + nodes - 1) / nodes;
  options.configure = [lend](Config& config) { config.lend = lend; };
  for (const auto& [tensors, count] : {std::pair{1, 1}, std::pair{1, 200000}, std::pair{20, 400}}) {
    INFO(op << ", " << ranks << " ranks on " << nodes << " nodes, " << tensors << " tensors of "
            << count << (lend ? ", by who waits" : ", in the background"));
    CHECK(LeastInside(ranks, options, op, tensors, count) == 0);
  }
}

TEST_CASE("nor in steps that are negotiated, or of very many tensors", "[adasum]") {
  const auto [ranks, nodes] =
      GENERATE(std::pair{2, 1}, std::pair{3, 1}, std::pair{4, 2}, std::pair{3, 2});
  const bool lend = GENERATE(false, true);
  const Way way = GENERATE(Way{}, Way{"negotiated", false}, Way{"a process set", true, true},
                           Way{"prescaled", true, false, 0.5});
  WorldOptions options;
  options.local_size = (ranks + nodes - 1) / nodes;
  options.configure = [lend, way](Config& config) {
    config.lend = lend;
    config.lock_schedule = way.lock;
  };
  for (const std::string op : {"adasum", "adasum:local=average"}) {
    for (const auto& [tensors, count] :
         {std::pair{1, 1}, std::pair{20, 400}, std::pair{300, 400}}) {
      INFO(op << ", " << way.name << ", " << ranks << " ranks on " << nodes << " nodes, " << tensors
              << " tensors of " << count << (lend ? ", by who waits" : ", in the background"));
      CHECK(LeastInside(ranks, options, op, tensors, count, way) == 0);
    }
  }
}

// Of the whole process: the call on the user's thread, too.
TEST_CASE("a call that has been made before takes nothing from the heap", "[adasum]") {
  REQUIRE(horon_init() == HORON_OK);
  float value = 1;
  const int64_t shape = 1;
  horon_request request = {};
  request.struct_bytes = sizeof request;
  request.name = "kept";
  request.op = "adasum";
  request.dtype = HORON_FLOAT32;
  request.shape = &shape;
  request.ndim = 1;
  request.device = -1;
  horon_tensor* tensor = nullptr;
  REQUIRE(horon_register(&request, &tensor) == HORON_OK);
  enum Call { kStart, kStartAndWait, kRun, kSubmit };
  const Call call = GENERATE(kStart, kStartAndWait, kRun, kSubmit);
  request.input = request.output = &value;
  const auto begin = [&](horon_work** work) {
    if (call == kRun) return horon_run(&request, work);
    if (call == kSubmit) return horon_submit(&request, work);
    return horon_start(tensor, &value, &value, call == kStartAndWait, work);
  };
  int64_t least = INT64_MAX;
  for (int i = 0; i < 50 && least > 0; ++i) {
    const int64_t before = news;
    bool well = true;
    for (int step = 0; step < kSteps; ++step) {
      horon_work* work = nullptr;
      well = well && begin(&work) == HORON_OK && horon_work_wait(work, -1) == HORON_OK;
      horon_work_release(work);
    }
    least = std::min<int64_t>(least, news - before);
    REQUIRE(well);
  }
  INFO("call " << call);
  CHECK(least == 0);
  horon_tensor_release(tensor);
  REQUIRE(horon_shutdown() == HORON_OK);
}

TEST_CASE("a steady step of adasum takes a bounded number of small things from the heap",
          "[adasum]") {
  const int ranks = GENERATE(2, 3, 4);
  const std::string op = GENERATE("adasum", "adasum:algo=halving", "adasum:algo=doubling",
                                  "adasum:algo=tree", "adasum:algo=ring");
  constexpr int64_t kCount = 2 << 20;  // 8 MiB
  const Taken small = TakenBy(ranks, op, 1, kCount / 8), large = TakenBy(ranks, op, 1, kCount);
  const Taken many = TakenBy(ranks, op, 60, 4000);
  INFO(op << " on " << ranks << " ranks: " << small.things << " things for 1 MiB, " << large.things
          << " of " << large.bytes << " bytes for 8 MiB, " << many.things << " for 60 tensors");
  CHECK(large.things <= 600);
  CHECK(large.bytes <= 48 << 10);
  CHECK(large.largest <= 16 << 10);
  CHECK(many.things <= 20 * 60);
  // Through shared memory, whatever the size.
  if (op == "adasum") CHECK(large.things <= small.things + 20);
}

}  // namespace
}  // namespace horon
