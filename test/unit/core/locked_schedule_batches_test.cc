// Which parts of a locked schedule make one batch, and how a wrong guess is found and not repeated.
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/locked_schedule.h"
#include "test/support/road.h"

namespace horon {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
constexpr int kTensorBytes = 16;

// Tensors 1, 2, ... of 16 bytes, and what a rank's negotiator does with them.
class Job {
 public:
  Job(int tensors, int64_t batch_bytes)
      : Job(std::vector<std::string>(static_cast<size_t>(tensors), "sum"), batch_bytes) {}
  // By their ops.
  Job(const std::vector<std::string>& ops, int64_t batch_bytes)
      : schedule(true, batch_bytes), tensors_(static_cast<int>(ops.size())) {
    for (int id = 1; id <= tensors_; ++id) {
      const Request request = test::Tensor("t" + std::to_string(id),
                                           ops[static_cast<size_t>(id - 1)], {kTensorBytes / 4});
      cache_.Remember(static_cast<uint64_t>(id), registry_.Of(request).value(), {});
    }
  }
  // Each is agreed alone, in this order.
  void Step(const RecycledVector<uint64_t>& ids) {
    for (uint64_t id : ids) schedule.Observe(++decisions_, {id}, true, true, cache_);
  }
  RecycledVector<uint64_t> all() const {
    RecycledVector<uint64_t> ids;
    for (int id = 1; id <= tensors_; ++id) ids.push_back(static_cast<uint64_t>(id));
    return ids;
  }
  void Settle() {
    for (int step = 0; step < 400 && !schedule.locked(); ++step) Step(all());
    REQUIRE(schedule.locked());
  }
  void Arrive(uint64_t id) {
    Registration& what = *cache_.Get(id)->what;
    what.slot = 0;
    schedule.Arrived(what);
    schedule.SawArrivals();
  }
  // How many tensors each batch has that starts when these come.
  std::vector<size_t> Started(const RecycledVector<uint64_t>& ids) {
    std::vector<size_t> sizes;
    for (uint64_t id : ids) {
      Arrive(id);
      while (const auto* const batch = schedule.Next()) {
        sizes.push_back(batch->size());
        for (const auto& item : *batch) item.what->slot = -1;
      }
    }
    return sizes;
  }
  // The rank waits for what is pending, in vain, and the others hear of it.
  uint64_t GiveUp() {
    const uint64_t uneven = schedule.Uneven();
    schedule.Stop();
    schedule.Unlock(schedule.started(), uneven);
    for (uint64_t id : all()) cache_.Get(id)->what->slot = -1;
    return uneven;
  }

  LockedSchedule schedule;

 private:
  OpTable ops_;
  Registry registry_{ops_};
  ResponseCache cache_;
  int tensors_;
  uint64_t decisions_ = 0;
};

using Sizes = std::vector<size_t>;

TEST_CASE("locked batches: parts are put together until they are large enough") {
  const std::map<int64_t, Sizes> expected = {{0, {1, 1, 1, 1, 1, 1}},
                                             {kTensorBytes, {1, 1, 1, 1, 1, 1}},
                                             {kTensorBytes + 1, {2, 2, 2}},
                                             {4 * kTensorBytes, {4, 2}},
                                             {kAll, {6}}};
  for (const auto& [bytes, sizes] : expected) {
    INFO(bytes << " bytes");
    Job job(6, bytes);
    job.Settle();
    for (int step = 0; step < 3; ++step) CHECK(job.Started(job.all()) == sizes);
  }
}

TEST_CASE("locked batches: only parts of one op are put together, if it fills outputs") {
  Job job({"sum", "sum", "average", "average", "sum", "allgather", "allgather", "broadcast:root=0",
           "broadcast:root=0", "broadcast:root=1", "alltoall", "sum"},
          kAll);
  job.Settle();
  for (int step = 0; step < 3; ++step)
    CHECK(job.Started(job.all()) == Sizes{2, 2, 1, 1, 1, 2, 1, 1, 1});
}

TEST_CASE("locked batches: members may come in any order, and what lacks is counted") {
  Job job(3, kAll);
  job.Settle();
  CHECK(job.schedule.wanted() == 1);  // that something waits must be noticed
  CHECK(job.Started({3}).empty());
  CHECK(job.schedule.wanted() == 2);
  CHECK(job.Started({1}).empty());
  CHECK(job.Started({2}) == Sizes{3});
}

TEST_CASE("locked batches: what a rank waits for by itself is cut off, once") {
  for (const bool last : {true, false}) {  // the tensor that waits for the others comes last, first
    INFO("it comes " << (last ? "last" : "first"));
    Job job(5, kAll);
    job.Settle();
    const RecycledVector<uint64_t> others =
        last ? RecycledVector<uint64_t>{1, 2, 3, 4} : RecycledVector<uint64_t>{2, 3, 4, 5};
    const uint64_t alone = last ? 5 : 1;
    CHECK(job.Started(others).empty());
    CHECK(job.GiveUp() == (last ? 5u : 2u));
    job.Step(job.all());  // one step brings it back
    REQUIRE(job.schedule.locked());
    for (int step = 0; step < 3; ++step) {
      RecycledVector<uint64_t> order = others;
      order.insert(last ? order.end() : order.begin(), alone);
      CHECK(job.Started(order) == (last ? Sizes{4, 1} : Sizes{1, 4}));
    }
  }
}

TEST_CASE("locked batches: blocking calls come apart, and many wrong guesses end guessing") {
  constexpr int kTensors = 40;
  Job job(kTensors, kAll);
  int wrong = 0;
  Sizes sizes;
  for (;;) {
    job.Settle();
    sizes.clear();
    for (uint64_t id : job.all()) {  // each is waited for before the next one comes
      const Sizes started = job.Started({id});
      sizes.insert(sizes.end(), started.begin(), started.end());
      if (started.empty()) break;
    }
    if (sizes.size() == kTensors) break;
    REQUIRE(++wrong < kTensors - 1);
    CHECK(job.GiveUp() != 0);
  }
  CHECK(wrong > 0);
  CHECK(sizes == Sizes(kTensors, 1));
}

TEST_CASE("locked batches: what was agreed together is never cut") {
  Job job(2, kAll);
  job.Settle();
  CHECK(job.schedule.Uneven() == 0);  // nothing is pending
  job.schedule.Stop();
  job.Arrive(1);
  CHECK(job.schedule.Uneven() == 0);  // it is being left already
}

}  // namespace
}  // namespace horon
