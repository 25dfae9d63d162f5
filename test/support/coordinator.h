// A coordinator that is fed by hand: what the tests of decisions share. No transport, no thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/core/coordinator.h"
#include "test/support/catch.h"

namespace horon::test {

inline Request Named(const std::string& name, int64_t count = 4) {
  Request r;
  r.name = name;
  r.op = "sum";
  r.shape = {count};
  return r;
}

inline Report Of(std::vector<Request> requests) {
  Report report;
  report.requests = std::move(requests);
  return report;
}

struct HandFed {
  explicit HandFed(int size, int64_t capacity = 100, std::chrono::milliseconds patience = {})
      : sets(size), coordinator(size, ops, sets, capacity, patience) {}
  void Hear(int rank, Report report) { REQUIRE(coordinator.Hear(rank, std::move(report)).ok()); }
  OpTable ops;
  ProcessSets sets;
  Coordinator coordinator;
};

inline std::vector<std::string> Names(const Decision& decision) {
  std::vector<std::string> names;
  for (const Verdict& v : decision.verdicts) names.push_back(v.name);
  return names;
}

}  // namespace horon::test
