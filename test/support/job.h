// A job of the conformance tests: many tensors submitted at once to a World, by every rank in
// another order, so that fusion and concurrent buckets are part of it; then what came of each, by
// rank.
#pragma once

#include <string>
#include <vector>

#include "test/support/op_runner.h"

namespace horon::test {

// Elements; the last is several streaming chunks (16 KiB in a World) and above the fusion limit
// below.
inline constexpr int64_t kCounts[] = {0, 1, 3, 17, 1000, 70'001};
inline constexpr int64_t kFusionBytes = 64 << 10;

struct Layout {
  int size;
  int local_size;  // 0: one node
  bool lanes;
};
inline constexpr Layout kLayouts[] = {{1, 0, true}, {2, 0, true},  {3, 0, true},  {4, 0, true},
                                      {5, 0, true}, {3, 0, false}, {5, 0, false}, {3, 1, true},
                                      {4, 2, true}, {3, 2, true},  {5, 3, true},  {4, 2, false}};
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

// Names the items and runs them on a World of that layout.
void RunJob(const Layout& layout, std::vector<Item>& items);

// SmallValues of every rank.
std::vector<Values> InputsOf(DataType dtype, int size, int64_t count);

// The first failure of any rank, with the item's description; empty if there was none.
std::string FailureOf(const Item& item);
bool SameBitsEverywhere(const Item& item);

}  // namespace horon::test
