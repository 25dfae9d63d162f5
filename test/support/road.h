// What the tests of the whole road with thread ranks share: requests, the layouts that all of them
// run in, and how ranks tell the test's thread what was wrong. Only there are assertions safe.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/support/world.h"

namespace horon::test {

inline Request Tensor(const std::string& name, const std::string& op, Shape shape,
                      DataType dtype = DataType::kFloat32) {
  Request request;
  request.name = name;
  request.op = op;
  request.shape = std::move(shape);
  request.dtype = dtype;
  return request;
}

inline std::vector<WorldOptions> Layouts() {
  WorldOptions no_lanes, two_nodes, no_lend;
  no_lanes.lanes = false;
  two_nodes.local_size = 2;
  no_lend.configure = [](Config& c) { c.lend = false; };
  return {{}, no_lanes, two_nodes, no_lend};
}

// Catch's assertions are not thread safe: ranks collect sentences, the test's thread checks them.
struct Verdicts {
  std::mutex mutex;
  std::vector<std::string> wrong;
  void Expect(bool ok, const std::string& what) {
    if (ok) return;
    std::lock_guard lock(mutex);
    wrong.push_back(what);
  }
};
// For the body of a rank, where `me` is the rank and `verdicts` are the test's.
#define EXPECT(cond, what) \
  verdicts.Expect((cond), std::string("rank ") + std::to_string(me.rank()) + ": " + (what))
inline void RequireNone(const Verdicts& verdicts) {
  for (const std::string& sentence : verdicts.wrong) UNSCOPED_INFO(sentence);
  REQUIRE(verdicts.wrong.empty());
}

}  // namespace horon::test
