// Coordinator: decides what is ready on every rank that must have it, in which order, and whether
// the ranks agree. Pure: no transport, no clock, no thread; fed with reports, gives decisions. It
// lives on rank 0 and orders all process sets. Called by the negotiator, on the holder of the
// baton.
//
// - A name is judged when every rank of its set has reported it. A group is judged when all its
//   members are, and runs, or fails, as one.
// - Disagreement fails the name (or group) on every rank of the set, those included that report it
//   later: what they still owe is remembered and answered with the same sentence.
// - What some ranks have not reported for too long is not waited for, if its op says so: it fails,
//   or all ranks keep what they have, the late ones as soon as they report it.
// - What was agreed is remembered under a cache id (agreement_cache.h); ranks that want the same
//   again send the id.
// - A rank that has left fails everything that needs it. What needs a rank that has joined is ready
//   without it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/agreement_cache.h"
#include "runtime/core/process_sets.h"
#include "runtime/core/stall.h"
#include "runtime/core/wire.h"
#include "runtime/op/op.h"

namespace horon {

class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // `sets` is rank 0's own table; it changes only when rank 0 applies a decision.
  // `patience`: how long ops may wait that do not wait for ever (Op::when_late); 0: they do.
  Coordinator(int size, OpTable& ops, const ProcessSets& sets, int64_t cache_capacity,
              std::chrono::milliseconds patience = {});

  // One rank's report. kInternal if it cannot be (a cache id that never was).
  Status Hear(int rank, Report report);
  // Everything ready by now, or nothing to say (no verdicts, nobody left); then it has no sequence
  // number unless one is wanted `anyway`.
  Decision Decide(bool anyway = false);
  // A decision that runs nothing, for what else has to be said.
  Decision Pause();
  // What some ranks have reported under this cache id was not reported: the ranks agree on it
  // without negotiation from now on.
  void Withdraw(uint64_t cache_id);
  bool HasNews() const { return !ready_.empty() || !told_.empty() || !newly_left_.empty(); }

  // For the stall judge: what some ranks have reported and others not. `now` dates what is heard.
  void SetTime(Time now) { now_ = now; }
  std::vector<PendingTensor> Pending() const;
  // Before that time nobody is late. May be earlier than it must; max: nothing waits.
  Time late_at() const { return waiting_ > 0 ? late_at_ : Time::max(); }
  // Settles what has waited too long. What was left out, in sentences to be logged.
  std::vector<std::string> JudgeLate(Time now);
  // The rank is gone, whether or not it says so: everything that needs it fails.
  void Leave(int rank);
  // Gives a pending name up (with its group), on all ranks.
  void GiveUp(const std::string& key, const Status& status) { Settle(key, status); }

 private:
  // A name that some ranks have reported. It stays, idle, as long as its agreement is remembered:
  // in a steady job nothing is made or taken apart.
  struct Row {
    const std::string* key = nullptr;  // its own in rows_
    ProcessSets::Ranks ranks;
    std::vector<SharedRequest> by_rank;  // by rank in the set; null: not yet
    int reported = 0;                    // 0: idle
    uint64_t cache_id = 0;               // of all reports so far, 0 if they differ or are requests
    uint64_t remembered = 0;             // the cache id of its last agreement, while it is alive
    bool ready = false;                  // it and its group: runs with the next decision
    bool listed = false;                 // in idle_
    SharedRequest grouped;               // the request that `group` is of
    std::string group;                   // what Ready looks under; empty: alone
    Agreement agreed;
    Time since;           // its first report
    SharedRequest first;  // reported; null when idle
    bool mixed = false;   // what was reported belongs to different groups
    bool patient = true;  // its op waits for ever
    std::vector<int> joined;  // judged without these ranks, ascending, which have joined
    SharedRequest stand_in;   // and with this in their place
    void Put(int index, SharedRequest request);
    const SharedRequest& some() const { return by_rank[0] ? by_rank[0] : first; }
  };
  struct Debt {
    int members = 1;  // that the rank will still report
    Status status;
    // Ok: to be kept, if it is what rank `who` had asked for.
    SharedRequest asked = nullptr;
    int who = -1;
  };
  // Of a settled name or group: who still has to be told, by global rank, the oldest first.
  using Owed = std::map<int, std::deque<Debt>>;

  // coordinator.cc: from reports to decisions.
  static int IndexOf(const std::vector<int>& ranks, int rank);
  Result<SharedRequest> Remembered(int rank, uint64_t cache_id) const;
  bool HearAgain(int rank, uint64_t cache_id, RecycledVector<Row*>& heard);
  void Begin(Row& row, uint64_t cache_id);
  void Await(const Row& row);
  void HearOne(int rank, SharedRequest request, uint64_t cache_id, RecycledVector<Row*>& heard);
  void Consider(Row& row);
  void Judge(Row& row);
  Status CheckRow(const Row& row, Agreement* agreed);
  void Ready(Row& row);
  void RunRow(Row& row, Decision& decision);
  void Link(Row& row, uint64_t cache_id);
  void Unlink(uint64_t cache_id);
  void Clear(Row& row);
  void Sweep();
  bool Cacheable(const Request& request) const;
  uint64_t HeardByAll() const;

  // coordinator_sets.cc: changes of process sets.
  Status CheckBuiltIn(const Row& row, Agreement* agreed);
  Result<int32_t> PromiseSet(std::vector<int> ranks, bool formed);
  static bool Formed(const Row& row);
  static bool IsOf(const Request& request, int rank);
  bool Needs(const Row& row, int rank) const;

  // coordinator_join.cc: what runs on ranks that have not asked for it.
  bool Joined(int rank) const;
  void Join(Row& row, int rank);
  bool Complete(const Row& row) const;
  void StandIn(Row& row) const;
  void ConsiderAll();
  void RunWithout(Row& row, Decision& decision);

  // coordinator_late.cc
  WhenLate WhenLateOf(const std::string& spec) const;
  WhenLate WhenLateOf(const Row& row) const;
  struct Tensors {
    std::string first;
    size_t count = 0;
  };
  using LeftOut = std::map<std::vector<int>, Tensors>;  // by the ranks that are late
  void SettleLate(const Row& row, WhenLate when, LeftOut& left_out);
  void LeaveOut(const Row& row);
  static bool InGroup(const Row& row, const Request& member);
  Status CheckCame(const Row& row) const;

  // coordinator_failures.cc: what does not run, and who is told so.
  Status Admissible(int rank, const Request& request, const ProcessSets::Ranks& ranks) const;
  void TellOne(int rank, const Request& request, const Status& status);
  bool AnswerOwed(int rank, const Request& request, const std::string& key);
  static std::optional<Debt> TakeDebt(std::map<std::string, Owed>& owed, const std::string& key,
                                      int rank);
  static Status CheckLate(const Debt& debt, int rank, const Request& request);
  static int FirstOf(const Row& row);
  Row* Reported(const std::string& key);
  void Settle(const std::string& key, const Status& status);
  void SettleRow(const std::string& key, const Status& status, const std::set<int>& told);
  void SettleGroup(const Request& member, const Status& status);
  void FailSet(int32_t set);
  void ForgetOwed(int rank);

  int size_;
  OpTable* ops_;
  const ProcessSets* sets_;
  AgreementCache cache_;
  uint64_t sequence_ = 0;
  std::chrono::milliseconds patience_;
  Time now_, late_at_ = Time::max();
  int waiting_ = 0;  // reported rows whose ops do not wait for ever

  std::map<std::string, Row> rows_;
  std::unordered_map<uint64_t, Row*> row_of_;  // by Row::remembered
  std::vector<Row*> idle_;                     // may go, unless they are in use again
  // Keys of groups are KeyOf(set, group).
  std::map<std::string, std::vector<Row*>> group_ready_;  // with hash -> judged members
  std::map<std::string, Owed> owed_names_, owed_groups_;
  RecycledVector<Row*> ready_;  // in the order they became ready
  std::vector<Verdict> told_;   // of what does not run
  std::vector<int32_t> newly_left_;
  std::vector<bool> left_;
  std::vector<int> gone_;  // ranks that have left: who left first is why others do
  Row* join_ = nullptr;  // who has reported it, has joined; null: nobody
  int last_joined_ = -1;
  // Sets of the next decision, with their ids; by whether they are formed.
  std::map<std::pair<bool, std::vector<int>>, int32_t> promised_;
  Time decided_at_;              // something about tensors
  std::vector<uint64_t> heard_;  // by rank
};

}  // namespace horon
