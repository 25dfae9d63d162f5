// Request: what one rank wants done with one tensor. It travels to the coordinator, where Op::Check
// compares the requests of all ranks. Everything that ever takes part in agreement is in it from
// the start, so that no wire format has to grow a field for a new op: the op's static parameters
// are in its spec string, what changes from call to call is in splits, weights and round.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/tensor.h"

namespace horon {

struct Request {
  std::string name;  // unique among a process set's requests in flight
  std::string op;    // spec: "sum", "broadcast:root=0", "gossip:graph=ring"
  DataType dtype = DataType::kFloat32;
  Device device;
  Shape shape;
  double prescale = 1.0;   // of the input, before the op
  double postscale = 1.0;  // of the result, after it
  int32_t process_set = 0;
  std::string group;  // members of one group complete, and fail, as one; empty: alone
  int32_t group_size = 0;
  uint64_t group_hash = 0;      // of the members' names in order
  int64_t round = 0;            // gossip: rounds of this tensor that this rank completed
  std::vector<int64_t> splits;  // alltoall: rows for each rank
  std::vector<double> weights;  // mixing weights given by the caller
  // Not asked for but put in place of a rank that has joined (coordinator_join.cc): it agrees with
  // anything. Never travels.
  bool joined = false;

  bool operator==(const Request&) const = default;
};

// Names of two process sets never meet.
inline std::string KeyOf(int32_t process_set, const std::string& name) {
  return std::to_string(process_set) + "/" + name;
}
// The same on every rank, in every run: FNV-1a of the key. What per-tensor state hangs on.
uint64_t TensorId(int32_t process_set, const std::string& name);
// What the runtime does by itself, without an Op: users cannot name it.
inline bool IsBuiltIn(const std::string& op) {
  return op == "join" || op.starts_with("process_set.");
}
// A process set that only its members ask for. It fails where some are late, if the op says so.
inline constexpr char kFormSet[] = "process_set.form";
inline constexpr char kFormSetInTime[] = "process_set.form_in_time";
inline bool FormsSet(const std::string& op) { return op == kFormSet || op == kFormSetInTime; }

// What the ranks agreed on beyond the request itself: rows by rank (allgather), the matrix of
// splits (alltoall), all weights (neighbor_allreduce of GPU tensors). Made by Op::Check on the
// coordinator, the same on every rank.
struct Agreement {
  std::vector<int64_t> sizes;
  std::vector<int> away = {};  // global ranks that take no part: they have joined; ascending
  bool operator==(const Agreement&) const = default;
};

}  // namespace horon
