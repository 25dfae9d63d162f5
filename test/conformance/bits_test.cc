// The same bits: for a given layout of ranks on nodes a reduction gives the same bits on all ranks
// and in all runs, whatever is fused, however a row is sliced, in which order tensors are
// submitted, when each rank comes with them, which thread runs the cycle, negotiated or locked. The
// values are such that the order of additions, or of multiplications, shows in the last bits.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "test/support/job.h"
#include "test/support/road.h"

namespace horon {
namespace {

using test::Bytes;
using test::Layout;
using test::Rank;
using test::Verdicts;
using test::World;
using test::WorldOptions;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16,
                               DataType::kFloat64};
constexpr const char* kOps[] = {"average", "sum", "product"};
constexpr int64_t kCounts[] = {5, 1000, 70'001, 600'007};  // the last one is several slices
constexpr int kSteps = 6;                                  // locked from the fourth on

struct Way {
  int64_t fusion_bytes;
  int64_t chunk_bytes;  // of a lane
  bool lock, lend, wait_each;
  int shift;                 // between the ranks' orders of submission
  int64_t slice_bytes = 0;   // between nodes
  bool late = false;         // each rank at times of its own, in each run at others
  bool past_caches = false;  // all that can be
};
constexpr Way kWays[] = {
    {128 << 20, 16 << 10, true, true, false, 0},
    {0, 16 << 10, true, true, true, 0},
    {0, 64 << 10, false, true, false, 5},
    {100'000, 16 << 10, false, false, false, 1},
    {3 << 20, 4096, true, false, false, 3},
    {128 << 20, 16 << 10, true, true, false, 0, 100'000},
    {100'000, 16 << 10, false, true, false, 3, 0, true},
    {3 << 20, 16 << 10, true, true, false, 0, 0, true},
    {128 << 20, 16 << 10, true, true, false, 0, 0, false, true},
};

struct Tensor {
  DataType dtype;
  std::vector<Bytes> inputs;  // by rank
};

std::vector<Tensor> Tensors(int ranks) {
  std::vector<Tensor> tensors;
  for (const DataType dtype : kTypes) {
    for (const int64_t count : kCounts) {
      tensors.push_back({dtype, {}});
      for (int rank = 0; rank < ranks; ++rank)
        tensors.back().inputs.push_back(test::Encode(dtype, test::Fractions(rank, count)));
    }
  }
  return tensors;
}

// One step on one rank, every second tensor in place. The results, by tensor.
std::vector<Bytes> Step(Rank& me, const Way& way, const std::vector<Tensor>& tensors,
                        Verdicts& verdicts) {
  const auto rank = static_cast<size_t>(me.rank());
  std::vector<Bytes> inputs(tensors.size()), outputs(tensors.size());
  std::vector<std::shared_ptr<Work>> works;
  std::minstd_rand random(std::random_device{}());
  for (size_t turn = 0; turn < tensors.size(); ++turn) {
    const size_t i = (turn + rank * static_cast<size_t>(way.shift)) % tensors.size();
    if (way.late) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    inputs[i] = tensors[i].inputs[rank];
    outputs[i].resize(inputs[i].size());
    Request request;
    request.name = "t" + std::to_string(i);
    request.op = kOps[i % std::size(kOps)];
    request.dtype = tensors[i].dtype;
    request.shape = {static_cast<int64_t>(inputs[i].size()) / SizeOf(tensors[i].dtype)};
    const bool in_place = i % 2 == 0;
    auto work = me.Submit(request, inputs[i].data(), (in_place ? inputs : outputs)[i].data());
    EXPECT(work.ok(), work.status().message());
    if (!work.ok()) continue;
    works.push_back(work.value());
    if (way.wait_each) EXPECT(me.Wait(*works.back()).ok(), "a tensor alone");
  }
  for (const auto& work : works) EXPECT(me.Wait(*work).ok(), "a tensor");
  for (size_t i = 0; i < tensors.size(); i += 2) outputs[i] = std::move(inputs[i]);
  return outputs;
}

// By rank, then by step.
std::vector<std::vector<std::vector<Bytes>>> Results(const Layout& layout, const Way& way,
                                                     const std::vector<Tensor>& tensors) {
  WorldOptions options;
  options.local_size = layout.local_size;
  options.lanes = layout.lanes;
  options.configure = [&](Config& config) {
    config.fusion_bytes = way.fusion_bytes;
    config.shm_chunk_bytes = way.chunk_bytes;
    config.slice_bytes = way.slice_bytes;
    config.lock_schedule = way.lock;
    config.lend = way.lend;
    if (way.past_caches) config.shm_far_ns = 0;
    // Ranks that ask why they wait leave the schedule; under sanitizers a step takes seconds.
    config.stall_look = std::chrono::minutes{1};
  };
  std::vector<std::vector<std::vector<Bytes>>> results(static_cast<size_t>(layout.size));
  Verdicts verdicts;
  World(layout.size, options).Run([&](Rank& me) {
    for (int step = 0; step < kSteps; ++step)
      results[static_cast<size_t>(me.rank())].push_back(Step(me, way, tensors, verdicts));
    const bool locked = me.runtime().counters()["schedule.locks"].value() > 0;
    EXPECT(locked == way.lock, "its steps were locked, or not, as not meant");
  });
  test::RequireNone(verdicts);
  return results;
}

TEST_CASE("the same bits on all ranks, in all runs, whatever the way", "[conformance]") {
  constexpr Layout kPlaces[] = {{2, 0, true}, {3, 0, true}, {3, 0, false}, {2, 1, true},
                                {3, 1, true}, {4, 2, true}, {5, 3, true}};
  for (const Layout& layout : kPlaces) {
    const std::vector<Tensor> tensors = Tensors(layout.size);
    std::vector<Bytes> first;
    for (const Way& way : kWays) {
      INFO(test::Describe(layout) << ", way " << &way - kWays);
      for (const auto& rank : Results(layout, way, tensors)) {
        for (const auto& step : rank) {
          if (first.empty()) first = step;
          for (size_t i = 0; i < tensors.size(); ++i) {
            INFO(NameOf(tensors[i].dtype) << ", tensor " << i);
            REQUIRE(step[i].size() == first[i].size());
            REQUIRE(std::memcmp(step[i].data(), first[i].data(), first[i].size()) == 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace horon
