// A world in which every rank has a fake GPU. Used by the tests of GPU tensors.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "test/support/fake_nccl.h"
#include "test/support/gpu_rank.h"
#include "test/support/gpu_transport.h"
#include "test/support/road.h"

namespace horon::test {

inline constexpr int kNccl = 23007;

// Ranks, ranks a node (0: all), and the NCCL of each.
struct GpuLayout {
  int size, local_size;
  std::vector<int> nccl;
  const char* way;  // the counter that moves
  bool between = false;
  std::function<void(int rank, Config&)> configure_rank = [](int, Config&) {};
  // NCCL's functions between the GPUs, not the fake network itself.
  bool functions = false;
  GpuChoices choices = {};
  std::function<void(int rank, GpuChoices&)> choose = [](int, GpuChoices&) {};
  // Ranks whose messages may lie in the GPU's memory, as those of an MPI that reads it; -1: all.
  std::vector<int> direct = {};
  // Puts something around the transports below that.
  std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport>)> wrap =
      [](int, std::unique_ptr<Transport> inner) { return inner; };
  // False: all goes in messages, which the GPUs notice; what a lane reads they do not.
  bool lanes = true;
  // Whether a launcher tells all ranks of one that has failed, as ranks of other nodes need.
  bool launched = false;
};

// Every rank has the same NCCL.
inline GpuLayout LayoutOf(int size, int local_size, const char* way, bool between = false) {
  return {size, local_size, std::vector<int>(static_cast<size_t>(size), kNccl), way, between};
}

// A world in which every rank has a GPU.
struct GpuWorld {
  explicit GpuWorld(const GpuLayout& layout)
      : gpus(layout.nccl),
        nccl(layout.functions ? std::make_unique<FakeNccl>(gpus) : nullptr),
        world(std::make_unique<World>(layout.size, OptionsOf(layout))),
        size_(layout.size) {}
  int size() const { return size_; }
  // Another job on the same GPUs.
  void Begin(const GpuLayout& layout) {
    world.reset();
    world = std::make_unique<World>(layout.size, OptionsOf(layout));
  }
  void Run(const std::function<void(GpuRank&)>& body) {
    world->Run([&](Rank& me) {
      GpuRank rank(me, gpus.gpu(me.rank()));
      body(rank);
    });
  }
  // No GPU has a complaint, and no rank one about a result.
  void Check() {
    RequireNone(verdicts);
    REQUIRE(gpus.complaints() == std::vector<std::string>{});
  }
  void Expect(bool right, const std::string& what) { verdicts.Expect(right, what); }
  WorldOptions OptionsOf(const GpuLayout& layout) {
    WorldOptions options;
    options.local_size = layout.local_size;
    options.lanes = layout.lanes;
    options.gpus = [this, layout](int rank) {
      GpuChoices choices = layout.choices;
      layout.choose(rank, choices);
      return gpus.Of(rank, choices);
    };
    options.configure = [between = layout.between](Config& config) {
      config.shm_chunk_bytes = 16 << 10;
      config.inter = between ? "nccl" : "mpi";
    };
    options.configure_rank = layout.configure_rank;
    if (layout.launched) {
      options.losses = std::make_shared<Losses>();
      options.on_fault = [losses = options.losses](int rank, const std::string& what) {
        losses->Report(rank, "rank " + std::to_string(rank) + " " + what);
      };
    }
    options.wrap = [this, direct = layout.direct, wrap = layout.wrap](
                       int rank, std::unique_ptr<Transport> inner) {
      const bool all = !direct.empty() && direct[0] < 0;
      const bool reads = all || std::find(direct.begin(), direct.end(), rank) != direct.end();
      return std::make_unique<GpuTransport>(wrap(rank, std::move(inner)), gpus.gpu(rank), reads);
    };
    return options;
  }
  FakeGpus gpus;  // outlives the runtimes
  std::unique_ptr<FakeNccl> nccl;
  Verdicts verdicts;
  std::unique_ptr<World> world;

 private:
  int size_;
};

// Floats 0, 1, 2, ... from `first` on.
inline Bytes Counting(int64_t first, int64_t count) {
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(first + i));
  return Encode(DataType::kFloat32, values);
}

}  // namespace horon::test
