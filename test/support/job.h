// A job of the conformance tests: many tensors submitted at once, by every rank in another order,
// so that fusion and concurrent buckets are part of it; then what came of each, by rank. Its ranks
// are those of a World, or of MPI in a program that says so (conformance/mpi_jobs.cc).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "test/support/op_runner.h"

namespace horon {
class Runtime;
}

namespace horon::test {

// Elements; the last is several streaming chunks (16 KiB in a World) and above the fusion limit
// below.
inline constexpr int64_t kCounts[] = {0, 1, 3, 17, 1000, 70'001};
inline constexpr int64_t kFusionBytes = 64 << 10;

struct Layout {
  int size;
  int local_size;  // 0: one node
  bool lanes;
  bool blocks = false;  // between nodes MPI reduces whole blocks
};
std::string Describe(const Layout& layout);

// One tensor of a job, and what came of it by rank.
struct Item {
  std::string op;
  OpTensor tensor;
  std::vector<OpOutput> outputs{};
  std::vector<Status> statuses{};
  DataType dtype() const { return tensor.requests[0].dtype; }
};
std::string Describe(const Item& item);

// The place where jobs run: Worlds, unless another one was set before the first test.
struct JobPlace {
  std::vector<Layout> (*layouts)();
  std::span<const int64_t> (*counts)();
  void (*run)(const Layout& layout, std::vector<Item>& items);
};
void SetJobPlace(const JobPlace& place);
std::vector<Layout> JobLayouts();
std::span<const int64_t> JobCounts();

// Names the items and runs them on that layout.
void RunJob(const Layout& layout, std::vector<Item>& items);
// This rank's part of it.
void RunItems(Runtime& runtime, std::vector<Item>& items);

// SmallValues of every rank.
std::vector<Values> InputsOf(DataType dtype, int size, int64_t count);

// The first failure of any rank, with the item's description; empty if there was none.
std::string FailureOf(const Item& item);
bool SameBitsEverywhere(const Item& item);

}  // namespace horon::test
