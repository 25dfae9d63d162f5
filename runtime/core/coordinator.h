// Coordinator: decides what is ready on every rank that must have it, in which order, and whether
// the ranks agree. Pure: no transport, no clock, no thread; fed with reports, gives decisions. It
// lives on rank 0 and orders all process sets. Called by the negotiator, on the holder of the
// baton.
//
// - A name is judged when every rank of its set has reported it. A group is judged when all its
//   members are, and runs, or fails, as one.
// - Disagreement fails the name (or group) on every rank of the set, those included that report it
//   later: what they still owe is remembered and answered with the same sentence.
// - What was agreed is remembered under a cache id; ranks that want the same again send the id.
//   Eviction is least recently used; an evicted id is kept until every rank has heard of it.
// - A rank that has left fails everything that needs it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/process_sets.h"
#include "runtime/core/stall.h"
#include "runtime/core/wire.h"
#include "runtime/op/op.h"

namespace horon {

class Coordinator {
 public:
  // `sets` is rank 0's own table; it changes only when rank 0 applies a decision.
  Coordinator(int size, OpTable& ops, const ProcessSets& sets, int64_t cache_capacity);

  // One rank's report. kInternal if it cannot be (a cache id that never was).
  Status Hear(int rank, Report report);
  // Everything ready by now, or nothing to say (no verdicts, nobody left); then it has no sequence
  // number unless one is wanted `anyway`.
  Decision Decide(bool anyway = false);
  bool HasNews() const { return !ready_.empty() || !failed_.empty() || !newly_left_.empty(); }

  // For the stall judge: what some ranks have reported and others not. `now` dates what is heard.
  void SetTime(std::chrono::steady_clock::time_point now) { now_ = now; }
  std::vector<PendingTensor> Pending() const;
  // Gives a pending name up (with its group), on all ranks.
  void GiveUp(const std::string& key, const Status& status) { Fail(key, status); }

 private:
  using SharedRequest = std::shared_ptr<const Request>;
  struct Row {  // a name that some ranks have reported
    ProcessSets::Ranks ranks;
    std::vector<SharedRequest> by_rank;  // by rank in the set; null: not yet
    int reported = 0;
    uint64_t cache_id = 0;  // of all reports so far, 0 if they differ or are requests
    bool ready = false;     // it and its group: runs with the next decision
    Agreement agreed;
    std::chrono::steady_clock::time_point since;  // its first report
  };
  struct Remembered {  // a cache entry
    std::string key;
    int32_t process_set;
    std::vector<SharedRequest> by_rank;
    Agreement agreed;
    uint64_t used = 0;        // decision number of its last use
    uint64_t evicted_at = 0;  // 0: alive
  };
  struct Owed {                // a failed name or group: who still has to be told
    std::map<int, int> ranks;  // global rank -> members it will still report
    Status status;
  };

  void HearOne(int rank, SharedRequest request, uint64_t cache_id, std::vector<std::string>& keys);
  void Consider(const std::string& key);
  static bool GroupsDiffer(const Row& row);
  bool AnswerOwed(int rank, const Request& request, const std::string& key);
  Status Admissible(int rank, const Request& request, const ProcessSets::Ranks& ranks) const;
  void Judge(const std::string& key, Row& row);
  Status CheckRow(const Row& row, Agreement* agreed) const;
  Status CheckMembership(const Row& row, Agreement* agreed) const;
  void Fail(const std::string& key, const Status& status);
  void FailRow(const std::string& key, const Status& status, const std::set<int>& settled);
  void FailGroup(int32_t set, const std::string& group, const Status& status);
  void Ready(const std::string& key);
  void TellOne(int rank, const Request& request, const Status& status);
  void Leave(int rank);
  void Remember(const std::string& key, Row& row, Verdict& verdict, uint64_t sequence);
  void ForgetSet(int32_t set);
  void Evict(Decision& decision);
  void ForgetHeard();

  int size_;
  OpTable* ops_;
  const ProcessSets* sets_;
  int64_t capacity_;
  uint64_t sequence_ = 0;
  uint64_t next_cache_id_ = 1;
  std::chrono::steady_clock::time_point now_;

  std::map<std::string, Row> rows_;
  std::map<std::string, std::vector<std::string>> group_ready_;  // group key -> judged members
  std::map<std::string, Owed> owed_names_, owed_groups_;
  std::vector<std::string> ready_;  // keys, in the order they became ready
  std::vector<Verdict> failed_;
  std::vector<int32_t> newly_left_;
  std::vector<bool> left_;
  std::vector<uint64_t> heard_;  // by rank
  std::unordered_map<uint64_t, Remembered> cache_;
  std::unordered_map<std::string, uint64_t> cache_id_of_;  // alive entries
  std::map<uint64_t, std::vector<uint64_t>> by_use_;       // decision number -> ids used then
};

}  // namespace horon
